//! The types of the variables in admission expressions: `request`, `namespaceObject`, `authorizer` and `variables`. Objects and
//! parameters can have any type here.

use std::sync::Arc;

use cel::{Decl, Program, Scope, Type};

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";

/// Which variables an expression may use, besides `object`, `oldObject`, `request` and `namespaceObject`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Available<'a> {
    pub(crate) params: bool,
    pub(crate) authorizer: bool,
    /// The expression builds objects and patches.
    pub(crate) patches: bool,
    /// The variables of the policy, if the expression may use them at all.
    pub(crate) variables: Option<&'a [(String, Type)]>,
}

impl Available<'_> {
    /// Compiles an expression. Returns the type of its result, or the error in cel-go's words.
    pub(crate) fn judge(&self, source: &str) -> Result<Type, String> {
        compile(source, &self.scope()).map(|program| program.ty().clone())
    }

    /// Returns the types of the variables.
    pub(crate) fn scope(&self) -> Scope {
        let mut scope = Scope::of_names(&["object", "oldObject"])
            .declare("request", &request())
            .declare("namespaceObject", &namespace());
        if self.params {
            scope = scope.typed("params", Type::Dyn);
        }
        if self.patches {
            scope = scope.making_objects();
        }
        if self.authorizer {
            scope = scope
                .typed("authorizer", Type::Opaque(AUTHORIZER.into()))
                .typed("authorizer.requestResource", Type::Opaque(RESOURCE_CHECK.into()));
        }
        if let Some(variables) = self.variables {
            let fields = variables.iter().map(|(name, ty)| (name.clone(), Decl::simple(ty.clone())));
            scope = scope.declare("variables", &Decl::object("kubernetes.variables", fields));
        }
        scope
    }
}

/// Compiles an expression, or returns the error in cel-go's words.
pub(crate) fn compile(source: &str, scope: &Scope) -> Result<Program, String> {
    let program = Program::compile_in(source, scope)
        .map_err(|error| format!("compilation failed: {}", error.report(source)))?;
    match program.unusable() {
        Some(error) => Err(format!("program instantiation failed: {error}")),
        None => Ok(program),
    }
}

/// Returns the type that a policy's variable has for expressions that use it. Objects have no known type there.
pub(crate) fn of_variable(ty: &Type) -> Type {
    match ty {
        Type::List(item) => Type::List(Arc::new(of_variable(item))),
        Type::Map(key, value) => Type::Map(Arc::new(of_variable(key)), Arc::new(of_variable(value))),
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint => ty.clone(),
        _ => Type::Dyn,
    }
}

fn texts() -> Type {
    Type::List(Arc::new(Type::String))
}

fn object(name: &str, fields: &[(&str, Type)]) -> Arc<Decl> {
    Decl::object(name, fields.iter().map(|(name, ty)| (*name, Decl::simple(ty.clone()))))
}

fn request() -> Arc<Decl> {
    let triple = |name: &str, last: &str| {
        object(name, &[("group", Type::String), ("version", Type::String), (last, Type::String)]).ty()
    };
    let kind = triple("kubernetes.GroupVersionKind", "kind");
    let resource = triple("kubernetes.GroupVersionResource", "resource");
    let extra = Type::Map(Arc::new(Type::String), Arc::new(texts()));
    let user = object(
        "kubernetes.UserInfo",
        &[("username", Type::String), ("uid", Type::String), ("groups", texts()), ("extra", extra)],
    );
    object(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", Type::String),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", Type::String),
            ("name", Type::String),
            ("namespace", Type::String),
            ("operation", Type::String),
            ("userInfo", user.ty()),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
}

/// Has fewer fields than a namespace: upstream leaves out owners and managed fields.
fn namespace() -> Arc<Decl> {
    let pairs = || Type::Map(Arc::new(Type::String), Arc::new(Type::String));
    let metadata = object(
        "kubernetes.NamespaceMetadata",
        &[
            ("name", Type::String),
            ("generateName", Type::String),
            ("namespace", Type::String),
            ("labels", pairs()),
            ("annotations", pairs()),
            // Upstream spells it like this here, and `uid` in the object itself, so neither can be read.
            ("UID", Type::String),
            ("creationTimestamp", Type::Timestamp),
            ("deletionGracePeriodSeconds", Type::Int),
            ("deletionTimestamp", Type::Timestamp),
            ("generation", Type::Int),
            ("resourceVersion", Type::String),
            ("finalizers", texts()),
        ],
    );
    let condition = object(
        "kubernetes.NamespaceCondition",
        &[
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    let status = object(
        "kubernetes.NamespaceStatus",
        &[("conditions", Type::List(Arc::new(condition.ty()))), ("phase", Type::String)],
    );
    let spec = object("kubernetes.NamespaceSpec", &[("finalizers", texts())]);
    object(
        "kubernetes.Namespace",
        &[("metadata", metadata.ty()), ("spec", spec.ty()), ("status", status.ty())],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(source: &str) -> String {
        let available = Available { authorizer: true, ..Available::default() };
        match available.judge(source) {
            Ok(ty) => ty.to_string(),
            Err(why) => why.lines().next().unwrap_or("").to_owned(),
        }
    }

    #[test]
    fn fields_of_requests_and_namespaces_are_known() {
        assert_eq!(judged("request.userInfo.groups"), "list(string)");
        assert_eq!(judged("request.options"), "dyn");
        assert_eq!(judged("namespaceObject.metadata.labels.team == 'a'"), "bool");
        assert!(judged("request.user").ends_with("undefined field 'user'"));
        assert!(judged("namespaceObject.metadata.uid").ends_with("undefined field 'uid'"));
    }

    #[test]
    fn questions_about_rights_have_types() {
        assert_eq!(judged("authorizer.requestResource.check('get').allowed()"), "bool");
        assert_eq!(judged("authorizer.group('').resource('pods').check('get').reason()"), "string");
        assert!(judged("authorizer.resource('pods')").contains("found no matching overload for 'resource'"));
    }

    #[test]
    fn unavailable_variables_are_unknown() {
        let bare = Available::default();
        assert!(bare.judge("authorizer").unwrap_err().contains("undeclared reference to 'authorizer'"));
        assert!(bare.judge("variables.a").unwrap_err().contains("undeclared reference to 'variables'"));
        let variables = [("a".to_owned(), Type::Int)];
        let with = Available { variables: Some(&variables), ..bare };
        assert_eq!(with.judge("variables.a + 1").unwrap().to_string(), "int");
        assert!(with.judge("variables.b").unwrap_err().contains("undefined field 'b'"));
    }
}
