//! The language from outside: expressions in, printed values or errors out.

use cel::{PER_CALL, Program, Value, Variables, from_json};
use serde_json::json;

fn run(source: &str) -> String {
    let program = match Program::compile(source, &["self", "oldSelf"]) {
        Ok(program) => program,
        Err(error) => return format!("compile: {error}"),
    };
    let object = json!({
        "name": "web", "replicas": 3, "ratio": 0.5, "tags": ["a", "b", "c"], "labels": {"app": "web", "tier": "front"},
        "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}], "nothing": null, "text": "héllo wörld",
    });
    let variables = Variables::new().set("self", from_json(&object));
    let mut budget = PER_CALL;
    match program.eval(&variables, &mut budget) {
        Ok(Value::String(text)) => text.to_string(),
        Ok(value) => {
            let shown = Program::compile("'%s'.format([self])", &["self"]).unwrap();
            let variables = Variables::new().set("self", value);
            match shown.eval(&variables, &mut budget) {
                Ok(Value::String(text)) => text.to_string(),
                other => format!("{other:?}"),
            }
        }
        Err(error) => format!("error: {error}"),
    }
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(run(source), *expected, "{source}");
    }
}

#[test]
fn arithmetic_follows_the_usual_order() {
    check(&[
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("-5 % 3", "-2"),
        ("10 / 4", "2"),
        ("10.0 / 4.0", "2.5"),
        ("1 / 0", "error: division by zero"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1u + 2u", "3"),
        ("0x10", "16"),
        ("1 < 2.5", "true"),
        ("1 == 1.0", "true"),
        ("'a' + 'b' == \"ab\"", "true"),
        ("1 + 'a'", "error: no such overload"),
    ]);
}

#[test]
fn logic_tolerates_an_error_where_the_other_side_decides() {
    check(&[
        ("true || self.missing", "true"),
        ("self.missing || true", "true"),
        ("self.missing && false", "false"),
        ("self.missing || false", "error: no such key: missing"),
        ("has(self.name) ? self.name : 'none'", "web"),
        ("has(self.other) ? self.other : 'none'", "none"),
        ("!has(self.labels.x)", "true"),
    ]);
}

#[test]
fn macros_walk_lists_and_maps() {
    check(&[
        ("self.tags.all(t, t.size() == 1)", "true"),
        ("self.tags.exists(t, t == 'b')", "true"),
        ("self.tags.exists_one(t, t > 'a')", "false"),
        ("self.tags.map(t, t + '!')", "[a!, b!, c!]"),
        ("self.tags.map(t, t != 'b', t + '!')", "[a!, c!]"),
        ("self.ports.filter(p, p.port > 100).size()", "1"),
        ("self.labels.all(k, k in ['app', 'tier'])", "true"),
        ("self.labels.all(k, v, v != '')", "true"),
        ("self.tags.exists(i, t, i == 1 && t == 'b')", "true"),
        ("self.labels.transformList(k, v, k + '=' + v)", "[app=web, tier=front]"),
        ("self.labels.transformMap(k, v, v.size())", "{app: 3, tier: 5}"),
        ("cel.bind(x, self.replicas * 2, x + x)", "12"),
        ("self.tags.map(5, 1)", "compile: argument must be a simple name"),
    ]);
}

#[test]
fn optional_values_are_asked_with_a_question_mark() {
    check(&[
        ("self.?name.orValue('x')", "web"),
        ("self.?other.orValue('x')", "x"),
        ("self.?a.b.c.hasValue()", "false"),
        ("self.labels[?'app'].orValue('')", "web"),
        ("self.tags[?9].hasValue()", "false"),
        ("optional.of(3).optMap(x, x * 2).value()", "6"),
        ("optional.none().or(optional.of(1)).value()", "1"),
        ("[?self.?name, ?self.?other]", "[web]"),
        ("{?'a': self.?other}.size()", "0"),
    ]);
}

#[test]
fn text_is_counted_in_letters() {
    check(&[
        ("self.text.size()", "11"),
        (
            "string(1.5) + ' ' + string(100000.0) + ' ' + string(1e6) + ' ' + string(-1e-5)",
            "1.5 100000 1e+06 -1e-05",
        ),
        ("string(1e300 * 1e300)", "+Inf"),
        ("self.text.substring(1, 5)", "éllo"),
        ("'tacocat'.indexOf('a')", "1"),
        ("'tacocat'.lastIndexOf('a')", "5"),
        ("'a,b,c'.split(',')", "[a, b, c]"),
        ("'a,b,c'.split(',', 2)", "[a, b,c]"),
        ("'hello'.charAt(1)", "e"),
        ("'  x '.trim()", "x"),
        ("['a', 'b'].join('-')", "a-b"),
        ("'abc'.matches('^[a-c]+$')", "true"),
        ("'a1b22'.findAll('[0-9]+')", "[1, 22]"),
        ("'%d of %s is %.2f'.format([1, 'x', 2.5])", "1 of x is 2.50"),
        ("'abc'.substring(2, 1)", "error: invalid substring range. start: 2, end: 1"),
        (r#"r'\d' + '\t' + """a"b""""#, "\\d\ta\"b"),
    ]);
}

#[test]
fn kubernetes_has_libraries_of_its_own() {
    check(&[
        ("url('https://example.com:80/p?a=1').getPort()", "80"),
        ("url('https://u@[::1]:80/').getHostname()", "::1"),
        ("isURL('/path')", "true"),
        ("isURL('no url')", "false"),
        ("quantity('1Gi').isGreaterThan(quantity('500Mi'))", "true"),
        ("quantity('500m').isInteger()", "false"),
        ("isQuantity('1.5x')", "false"),
        ("ip('10.0.0.1').family()", "4"),
        ("cidr('10.0.0.0/8').containsIP('10.1.2.3')", "true"),
        ("isIP('::ffff:1.2.3.4')", "false"),
        ("cidr('10.1.2.3/8').masked().ip() == ip('10.0.0.0')", "true"),
        ("semver('1.2.3-rc.1').isLessThan(semver('1.2.3'))", "true"),
        ("isSemver('v1.2', true)", "true"),
        ("sets.contains([1, 2, 3], [2])", "true"),
        ("[3, 1, 2].max()", "3"),
        ("[1, 2].isSorted()", "true"),
        ("[1, 2, 3].sum()", "6"),
        ("format.dns1123Label().validate('ok').hasValue()", "false"),
        ("format.dns1123Label().validate('Not_Ok').hasValue()", "true"),
        ("[[1, 2], [3]].flatten()", "[1, 2, 3]"),
        ("[3, 1, 2].sort()", "[1, 2, 3]"),
        ("math.greatest(1, 5, 3)", "5"),
        ("base64.decode('aGk=') == b'hi'", "true"),
    ]);
}

#[test]
fn time_is_computed_with() {
    check(&[
        ("duration('1h30m').getMinutes()", "90"),
        ("duration('1500ms').getMilliseconds()", "1500"),
        ("duration('1h') > duration('59m')", "true"),
        ("string(duration('90s'))", "90s"),
        ("timestamp('2026-01-02T03:04:05Z').getFullYear()", "2026"),
        ("timestamp('2026-01-02T03:04:05Z') + duration('1h') == timestamp('2026-01-02T04:04:05Z')", "true"),
        ("timestamp('2026-01-04T00:00:00Z').getDayOfWeek()", "0"),
        ("type(1) == int", "true"),
        ("int('12') + 1", "13"),
        ("duration('x')", "error: time: invalid duration \"x\""),
    ]);
}

#[test]
fn mistakes_are_found_before_anything_runs() {
    check(&[
        ("nobody.name", "compile: undeclared reference to 'nobody' (in container '')"),
        ("self.name.shout()", "compile: undeclared reference to 'shout' (in container '')"),
        ("has(self)", "compile: invalid argument to has() macro"),
    ]);
    assert!(run("self.name ==").starts_with("compile: Syntax error"));
    assert!(run("size(self.name,)").starts_with("compile: Syntax error"));
    assert!(run("size(").contains("expecting {'[', '{', '(', ')', '.',"));
    let error = Program::compile("1 +\nx", &[]).unwrap_err();
    assert_eq!(
        error.report("1 +\nx"),
        "ERROR: <input>:2:1: undeclared reference to 'x' (in container '')\n | x\n | ^"
    );
}

#[test]
fn a_budget_ends_what_costs_too_much() {
    let big: Vec<i64> = (0..2000).collect();
    let variables = Variables::new().set("self", from_json(&json!(big)));
    let program = Program::compile("self.all(a, self.all(b, self.all(c, true)))", &["self"]).unwrap();
    let mut budget = PER_CALL;
    let error = program.eval(&variables, &mut budget).unwrap_err();
    assert_eq!(error.0, "operation cancelled: actual cost limit exceeded");
    assert_eq!(budget, 0);
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
