//! What certain users may do at most, whatever roles say: in the manner of Kubernetes' node authorizer.
//!
//! Roles are written by people and programs, and give what they say. Whoever extends the server may know users who must never
//! get more than what is their own; such a user is asked about here, before any role, and in every place where rights matter.

use std::sync::Arc;

use super::User;
use super::rbac::Attributes;
use crate::server::Server;

/// Knows users whose rights have bounds.
pub trait Bounds: Send + Sync {
    /// Called once, before anybody is answered: whoever waited for a server that starts would be refused otherwise.
    fn connect(&self, _server: &Arc<Server>) {}

    /// Decides about a request of a user with bounds; `None` for everybody else, about whom roles decide. `roles` tells what
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
    /// As far as it says.
    Asked,
    /// A list or a watch: only to what this field selector selects, too.
    Only(String),
}
