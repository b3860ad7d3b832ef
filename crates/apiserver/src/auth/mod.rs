//! Authentication (who is asking) and authorisation (whether they may).

pub(crate) mod bearer;
pub(crate) mod bootstrap_tokens;
pub mod bounds;
pub mod certify;
pub mod claims;
pub mod escalation;
pub mod front_proxy;
pub(crate) mod headers;
pub mod impersonation;
pub mod jwt;
pub mod oidc;
pub mod pki;
pub mod rbac;
pub(crate) mod renewal;
pub mod serving;
pub mod shared_keys;
pub mod signing_request;
pub(crate) mod subject;
pub mod tokens;
pub mod user;
pub mod x509;

pub use user::User;
