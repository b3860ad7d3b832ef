//! The library from outside: what callers rely on beyond what expressions mean, for which see `golden.rs`.

use cel::{EvalError, Lazy, PER_CALL, Program, Scope, Type, Value, Variables, from_json};
use serde_json::json;

#[test]
fn mistakes_are_shown_with_their_place() {
    let source = "1 +\nx";
    let error = Program::compile(source, &[]).unwrap_err();
    assert_eq!(
        error.report(source),
        "ERROR: <input>:2:1: undeclared reference to 'x' (in container '')\n | x\n | ^"
    );
    let source = "'é' + x + y";
    let reports = Program::compile(source, &[]).unwrap_err().report(source);
    assert_eq!(reports.matches("ERROR").count(), 2, "{reports}");
    assert!(reports.contains("\n | .．....^"), "{reports}");
}

#[test]
fn an_expression_that_is_too_deep_is_refused_and_not_evaluated() {
    for source in ["(".repeat(1000) + "1" + &")".repeat(1000), "1".to_owned() + &"+1".repeat(10_000)] {
        let error = Program::compile(&source, &[]).unwrap_err();
        assert!(error.to_string().contains("recursion"), "{error}");
    }
    let long = vec!["true"; 5_000].join(" && ");
    assert!(Program::compile(&long, &[]).is_ok(), "long chains are not deep ones");
}

#[test]
fn what_is_just_not_too_deep_fits_on_a_stack() {
    let variables = Variables::new().set("self", from_json(&json!({"a": [true]})));
    for (open, close) in [("!(false || (true && size([[", "]]) == 1))"), ("self.a.all(x, x && ", ")")] {
        for depth in [60, 120, 240] {
            let source = format!("{}true{}", open.repeat(depth), close.repeat(depth));
            if let Ok(program) = Program::compile(&source, &["self"]) {
                let _ = program.run(&variables, PER_CALL);
            }
        }
    }
}

/// Half of what a thread of the server has: the other half is for what called.
const STACK: usize = 1 << 20;

/// Parses and checks on a small stack; a stack that overflows ends the test program.
fn compile(source: String) {
    let run = move || {
        if let Ok(program) = Program::compile(&source, &["a"]) {
            let _ = program.run(&Variables::new().set("a", from_json(&json!({"b": [1]}))), PER_CALL);
        }
    };
    std::thread::Builder::new().stack_size(STACK).spawn(run).expect("a thread").join().expect("no panic");
}

#[test]
fn nesting_without_end_is_refused_on_a_small_stack() {
    for depth in [50, 99, 100, 101, 249, 250, 251, 1_000, 5_000] {
        let around = |open: &str, inner: &str, close: &str| open.repeat(depth) + inner + &close.repeat(depth);
        let mut chain = "1".to_owned();
        (0..depth).for_each(|n| chain += &format!(" + {n}"));
        for source in [
            around("(", "true", ")"),
            around("[", "1", "]"),
            around("{'a': ", "1", "}"),
            around("[1].exists(a, ", "true", ")"),
            around("[1].map(a, ", "a", ")"),
            around("f(", "1", ")"),
            around("true ? true : ", "true", ""),
            around("[1][", "0", "]"),
            around("!(", "true", ")"),
            around("-(", "1", ")"),
            around("1 + (", "1", ")"),
            around("1 < (1 < ", "1", ")"),
            "a".to_owned() + &".b".repeat(depth),
            "a".to_owned() + &"[0]".repeat(depth),
            "a".to_owned() + &".size()".repeat(depth),
            chain,
            "true".to_owned() + &" && true".repeat(depth),
            // Left open, which is a matter of syntax.
            "(".repeat(depth),
            "[1].exists(a, ".repeat(depth),
            "a[{'a': ".repeat(depth),
            "!".repeat(depth) + ")",
        ] {
            compile(source);
        }
    }
}

#[test]
fn a_limit_ends_what_costs_too_much() {
    let big: Vec<i64> = (0..2000).collect();
    let variables = Variables::new().set("self", from_json(&json!(big)));
    let program = Program::compile("self.all(a, self.all(b, self.all(c, true)))", &["self"]).unwrap();
    let mut budget = PER_CALL;
    let error = program.eval(&variables, &mut budget).unwrap_err();
    assert_eq!(error.0, cel::CANCELLED);
    assert_eq!(budget, 0);
}

#[test]
fn long_lists_are_collected_without_copies() {
    let variables = Variables::new().set("self", from_json(&json!(vec![1; 40_000])));
    let program = Program::compile("self.map(x, x).filter(x, x > 0).size() == 40000", &["self"]).unwrap();
    let done = program.run(&variables, 10_000_000);
    assert!(matches!(done.result, Ok(Value::Bool(true))), "{:?}", done.result);
}

#[test]
fn a_list_that_has_a_name_is_not_changed_by_adding_to_it() {
    let program =
        Program::compile("optional.of([1]).optMap(x, x + [2] + x).value() == [1, 2, 1]", &[]).unwrap();
    assert!(matches!(program.run(&Variables::new(), PER_CALL).result, Ok(Value::Bool(true))));
}

#[test]
fn types_of_variables_are_known_before_anything_runs() {
    let scope = Scope::new().typed("name", Type::String);
    assert_eq!(Program::compile_in("name.size()", &scope).unwrap().ty().to_string(), "int");
    assert!(Program::compile_in("name + 1", &scope).is_err());
    assert!(Program::compile_in("size(name) > 1", &scope).unwrap().uses("name"));
}

#[test]
fn a_constant_that_cannot_be_computed_makes_an_expression_unusable() {
    let program = Program::compile("int('x') == 1", &[]).unwrap();
    assert_eq!(program.unusable().unwrap().0, "type conversion error from 'string' to 'int'");
}

struct Doubled;

impl Lazy for Doubled {
    fn field(&self, name: &str, budget: &mut u64) -> Option<Result<Value, EvalError>> {
        *budget -= 100;
        (name == "two").then_some(Ok(Value::Int(2)))
    }
}

#[test]
fn variables_are_computed_when_they_are_asked_for_and_counted_apart() {
    let variables = Variables::new().set_lazy("variables", &Doubled);
    let program = Program::compile("true || variables.two == 2", &["variables"]).unwrap();
    assert_eq!(program.run(&variables, 10).cost, 0);
    let program = Program::compile("variables.two == 2", &["variables"]).unwrap();
    let done = program.run(&variables, 10);
    assert!(matches!(done.result, Ok(Value::Bool(true))));
    assert_eq!(done.cost, 103, "the limit is for the expression itself");
}

#[test]
fn objects_are_put_together_where_that_is_allowed() {
    let source =
        "Object{spec: Object.spec{replicas: 1 + 1, ?paused: optional.none(), names: ['a'].map(n, n + 'b')}}";
    assert!(Program::compile(source, &[]).is_err(), "only mutations make objects");
    let program = Program::compile_mutation(source, &[]).unwrap();
    let value = program.eval(&Variables::new(), &mut PER_CALL.clone()).unwrap();
    assert_eq!(cel::to_json(&value).unwrap(), json!({"spec": {"replicas": 2, "names": ["ab"]}}));
    let Value::Object(object) = value else { panic!("an object") };
    assert!(object.misplaced().is_empty());
}

#[test]
fn an_object_says_what_stands_at_the_wrong_place() {
    let program =
        Program::compile_mutation("Object{metadata: Object.spec{labels: {'a': 'b'}}}", &[]).unwrap();
    let Value::Object(object) = program.eval(&Variables::new(), &mut PER_CALL.clone()).unwrap() else {
        panic!("an object")
    };
    assert_eq!(
        object.misplaced(),
        [
            r#"unexpected type name "Object.spec", expected "Object.metadata", which matches field name path from root Object type"#
        ]
    );
}
