//! Upper bounds for the rights of certain users, whatever roles say, in the manner of Kubernetes' node authorizer.
//!
//! People and programs write roles, and roles can give too much. An extension of the server may know users who must never get
//! more than their own objects. These bounds are checked before any role, and everywhere that rights matter.

use std::sync::Arc;

use super::User;
use super::rbac::Attributes;
use crate::server::Server;

/// Knows users whose rights have bounds.
pub trait Bounds: Send + Sync {
    /// Called once, before any request is answered: requests that waited for the start of the server would be refused otherwise.
    fn connect(&self, _server: &Arc<Server>) {}

    /// Decides about a request of a user with bounds; `None` for all other users, about whom roles decide. `roles` says what
    /// roles would allow this user.
    fn bound(
        &self,
        user: &User,
        wanted: &Attributes<'_>,
        roles: &dyn Fn(&Attributes<'_>) -> bool,
    ) -> Option<Result<Reach, String>>;
}

/// How far an allowed request reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Without restriction.
    Asked,
    /// For a list or a watch: only the objects that this field selector also selects.
    Only(String),
}
