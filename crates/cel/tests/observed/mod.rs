//! Evaluates an expression as it was evaluated on the original, and writes down what came out in the same words.

use std::sync::Arc;

use cel::{Decl, Program, Scope, Type, Value, Variables};
use serde_json::{Value as Json, json};

/// What an expression is evaluated with.
#[derive(Debug, Default)]
pub(crate) struct Setting {
    /// The schema of `self` and `oldSelf`; without one the variables are those of admission policies.
    pub(crate) schema: Option<Json>,
    pub(crate) value: Json,
    pub(crate) old: Option<Json>,
    pub(crate) makes_objects: bool,
    /// The schema is that of a whole object.
    pub(crate) root: bool,
    pub(crate) optional_old: bool,
}

/// What came out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Why it does not compile.
    pub(crate) issues: String,
    pub(crate) ty: String,
    /// The least and the most that it may cost.
    pub(crate) estimate: String,
    /// Why it cannot be evaluated at all.
    pub(crate) program: String,
    pub(crate) result: String,
    pub(crate) error: String,
    pub(crate) cost: Option<u64>,
}

/// Compiles and evaluates an expression.
pub(crate) fn answer(setting: &Setting, source: &str, limit: u64) -> Answer {
    let program = match Program::compile_in(source, &scope(setting)) {
        Ok(program) => program,
        Err(error) => return Answer { issues: error.report(source), ..Answer::default() },
    };
    let mut answer = Answer {
        ty: program.ty().to_string(),
        estimate: format!("{}..{}", program.least_cost(), program.cost()),
        ..Answer::default()
    };
    if let Some(error) = program.unusable() {
        answer.program = error.to_string();
        return answer;
    }
    let done = program.run(&variables(setting), limit);
    answer.cost = Some(done.cost);
    match done.result {
        Ok(value) => answer.result = show(&value),
        Err(error) => answer.error = error.to_string(),
    }
    answer
}

fn scope(setting: &Setting) -> Scope {
    let Some(schema) = &setting.schema else {
        let mut scope = Scope::of_names(&["object", "oldObject", "params"])
            .declare("request", &request())
            .declare("namespaceObject", &namespace())
            .typed("authorizer", Type::Opaque("kubernetes.authorization.Authorizer".into()))
            .typed(
                "authorizer.requestResource",
                Type::Opaque("kubernetes.authorization.ResourceCheck".into()),
            );
        if setting.makes_objects {
            scope = scope.making_objects();
        }
        return scope;
    };
    let decl = Decl::of_schema(schema, setting.root, "selfType", &|_| None)
        .expect("a schema that declares something");
    let old = if setting.optional_old { Type::Optional(Arc::new(decl.ty())) } else { decl.ty() };
    Scope::new().declare("self", &decl).typed("oldSelf", old)
}

fn request() -> Arc<Decl> {
    let text = || Decl::simple(Type::String);
    let user = Decl::object(
        "kubernetes.UserInfo",
        [("username", text()), ("groups", Decl::list(&text())), ("extra", Decl::map(&Decl::list(&text())))],
    );
    Decl::object(
        "kubernetes.AdmissionRequest",
        [
            ("operation", text()),
            ("name", text()),
            ("namespace", text()),
            ("userInfo", user),
            ("dryRun", Decl::simple(Type::Bool)),
            ("options", Decl::simple(Type::Dyn)),
        ],
    )
}

fn namespace() -> Arc<Decl> {
    let text = || Decl::simple(Type::String);
    let metadata =
        Decl::object("kubernetes.NamespaceMetadata", [("name", text()), ("labels", Decl::map(&text()))]);
    Decl::object("kubernetes.Namespace", [("metadata", metadata)])
}

fn variables(setting: &Setting) -> Variables<'static> {
    let Some(schema) = &setting.schema else {
        let request = json!({"operation": "CREATE", "name": "x", "namespace": "ns", "dryRun": false,
            "userInfo": {"username": "u", "groups": ["a", "b"]}});
        let namespace = json!({"metadata": {"name": "ns", "labels": {"a": "b"}}});
        return Variables::new()
            .set("object", cel::from_json(&setting.value))
            .set("oldObject", setting.old.as_ref().map_or(Value::Null, cel::from_json))
            .set("params", Value::Null)
            .set("request", cel::from_json(&request))
            .set("namespaceObject", cel::from_json(&namespace));
    };
    let variables = Variables::new().set("self", cel::from_json_with(&setting.value, schema));
    let old = setting.old.as_ref().map(|old| cel::from_json_with(old, schema));
    match (old, setting.optional_old) {
        (Some(old), false) => variables.set("oldSelf", old),
        (Some(old), true) => variables.set("oldSelf", Value::some(old)),
        (None, true) => variables.set("oldSelf", Value::Optional(None)),
        (None, false) => variables,
    }
}

/// Shows a value so that its type can be seen.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => format!("{n}u"),
        Value::Double(n) => format!("double({})", double(*n)),
        Value::String(text) => json!(**text).to_string(),
        Value::Bytes(bytes) => {
            format!("b{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        Value::Timestamp(when) => format!("timestamp({when})"),
        Value::Duration(length) => format!("duration({})", length.as_nanos()),
        Value::Type(name) => format!("type({name})"),
        Value::Optional(Some(inner)) => format!("optional({})", show(inner)),
        Value::Optional(None) => "optional.none()".to_owned(),
        Value::Ip(ip) => format!("ip({ip})"),
        Value::Cidr(cidr) => format!("cidr({cidr})"),
        Value::Quantity(quantity) => format!("quantity({quantity})"),
        Value::List(list) => format!("[{}]", list.iter().map(show).collect::<Vec<_>>().join(", ")),
        Value::Map(map) => {
            let mut entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", show(&key.to_value()), show(value)))
                .collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        other => format!("<{}>", other.type_name()),
    }
}

/// Prints a number with as few digits as it takes, as Go does.
fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => number.to_string(),
    }
}
