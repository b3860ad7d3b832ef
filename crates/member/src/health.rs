//! Checks the health of a member.

use kube::Client;

/// The state of a member, by its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// No answer, or an error instead of one.
    Offline,
    /// It answers, but not with OK.
    Unhealthy,
    Healthy,
}

/// Asks `/readyz`, and `/healthz` where the former does not exist.
pub async fn probe(client: &Client) -> Health {
    match status(client, "/readyz").await {
        Some(404) => judge(status(client, "/healthz").await),
        answer => judge(answer),
    }
}

/// An error status counts as offline, as in Karmada, whose client turns it into an error.
fn judge(answer: Option<u16>) -> Health {
    match answer {
        Some(200) => Health::Healthy,
        Some(code) if (201..300).contains(&code) => Health::Unhealthy,
        _ => Health::Offline,
    }
}

async fn status(client: &Client, path: &str) -> Option<u16> {
    let request = http::Request::get(path).body(kube::client::Body::empty()).ok()?;
    client.send(request).await.ok().map(|response| response.status().as_u16())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_status_counts_as_offline() {
        assert_eq!(judge(Some(200)), Health::Healthy);
        assert_eq!(judge(Some(202)), Health::Unhealthy);
        assert_eq!(judge(Some(500)), Health::Offline);
        assert_eq!(judge(None), Health::Offline);
    }
}
