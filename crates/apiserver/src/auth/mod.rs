//! Who is asking (authentication) and whether they may (authorisation).

pub(crate) mod bearer;
pub(crate) mod bootstrap_tokens;
pub mod certify;
pub mod claims;
pub mod escalation;
pub mod front_proxy;
pub mod impersonation;
pub mod oidc;
pub mod pki;
pub mod rbac;
pub(crate) mod renewal;
pub mod serving;
pub mod tokens;
pub mod user;
pub mod x509;

pub use user::User;
