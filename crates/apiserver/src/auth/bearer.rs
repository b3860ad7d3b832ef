//! Finds the owner of a bearer token: static tokens, service accounts, bootstrap tokens, OpenID Connect, in this order.

use super::tokens::Distrust;
use super::{User, bootstrap_tokens};
use crate::server::Server;

/// Returns the owner of a token, and which of the audiences it is for; or why no authenticator accepts it.
pub(crate) async fn identify(
    server: &Server,
    token: &str,
    audiences: &[String],
) -> Result<(User, Vec<String>), Distrust> {
    let refused = match server.tokens.identify(&server.store, token, audiences) {
        Ok(found) => return Ok(found),
        Err(refused) => refused,
    };
    // The other authenticators do not know audiences: their tokens are for this server.
    let ours: Vec<String> =
        audiences.iter().filter(|each| **each == server.identity.issuer).cloned().collect();
    if ours.is_empty() {
        return Err(refused);
    }
    if let Some(user) = bootstrap_tokens::identify(&server.store, token, jiff::Timestamp::now()) {
        return Ok((user, ours));
    }
    match &server.oidc {
        Some(oidc) => oidc.identify(server, token).await.map(|user| (user, ours)).ok_or(refused),
        None => Err(refused),
    }
}
