//! Whose bearer token it is: static tokens, service accounts, bootstrap tokens, OpenID Connect, in this order.

use super::{User, bootstrap_tokens};
use crate::server::Server;

/// Returns the owner of a token, and which of the audiences it is for.
pub(crate) async fn identify(
    server: &Server,
    token: &str,
    audiences: &[String],
) -> Option<(User, Vec<String>)> {
    if let Some(found) = server.tokens.identify(&server.store, token, audiences) {
        return Some(found);
    }
    // The others know nothing of audiences: they are for this server.
    let ours: Vec<String> =
        audiences.iter().filter(|each| **each == server.identity.issuer).cloned().collect();
    if ours.is_empty() {
        return None;
    }
    if let Some(user) = bootstrap_tokens::identify(&server.store, token, jiff::Timestamp::now()) {
        return Some((user, ours));
    }
    let user = server.oidc.as_ref()?.identify(server, token).await?;
    Some((user, ours))
}
