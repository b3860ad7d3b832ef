//! Renews the agent's certificate before it expires: `certRotation`.
//!
//! In: the current kubeconfig, and how much of its certificate's time is left. Out: a kubeconfig with a new certificate for the
//! same name, stored where the old one came from: in the Secret `karmada-kubeconfig` of the member if that has the old one,
//! otherwise in the file. The old certificate remains valid until the new one is in use.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use admission::agents::AGENT_PREFIX;
use anyhow::{Context as _, bail};
use apimachinery::duration;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use cli::certificates::{Validity, Wanted, ask, suffix};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::config::Kubeconfig;
use serde_json::json;

use super::Agent;
use super::identity::Identity;

/// The Secret with the kubeconfig, and its key.
const KUBECONFIG: &str = "karmada-kubeconfig";
/// How long to wait for a new certificate.
const PATIENCE: Duration = Duration::from_secs(5 * 60);
/// The signers of Kubernetes and ours let certificates begin this long before now, for clocks that are behind. For durations
/// below eight hours, this time is added to the requested one.
const BACKDATE: Duration = Duration::from_secs(5 * 60);
const SHORT: Duration = Duration::from_secs(8 * 3600);
/// The shortest duration that may be requested.
const SHORTEST: Duration = Duration::from_secs(10 * 60);

/// Upstream's flags for the renewal.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Renewal of the certificate")]
pub(super) struct Rotation {
    /// How often certRotation looks at the certificate.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    cert_rotation_checking_interval: Duration,
    /// The certificate is renewed when no more than this part of its time is left.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.2)]
    cert_rotation_remaining_time_threshold: f64,
    /// Namespace of the Secret karmada-kubeconfig in the cluster. Unless that Secret has the agent's kubeconfig, the file is
    /// renewed.
    #[arg(long, value_name = "NAMESPACE", default_value = api::constants::NAMESPACE_SYSTEM)]
    karmada_kubeconfig_namespace: String,
}

impl Rotation {
    pub(super) fn checked(self) -> anyhow::Result<Self> {
        if self.cert_rotation_checking_interval.is_zero() {
            bail!("--cert-rotation-checking-interval must be greater than 0");
        }
        if !(0.0..1.0).contains(&self.cert_rotation_remaining_time_threshold) {
            bail!("--cert-rotation-remaining-time-threshold must be between 0 and 1");
        }
        Ok(self)
    }
}

/// Keeps the certificate valid while the agent acts.
pub(super) fn renew(agent: &Agent, identity: &Identity, rotation: &Rotation) {
    let (agent, identity, rotation) = (agent.clone(), identity.clone(), rotation.clone());
    let stop = agent.supervisor.token().clone();
    agent.supervisor.clone().keep("certRotation", move || {
        let (agent, identity, rotation, stop) =
            (agent.clone(), identity.clone(), rotation.clone(), stop.clone());
        async move {
            loop {
                if let Err(error) = look(&agent, &identity, &rotation).await {
                    let error = explain(error, &identity);
                    tracing::warn!("the agent's certificate is not renewed: {error:#}");
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(rotation.cert_rotation_checking_interval) => {}
                }
            }
        }
    });
}

async fn look(agent: &Agent, identity: &Identity, rotation: &Rotation) -> anyhow::Result<()> {
    let text = identity.text();
    let shown = Shown::read(&text, identity.context())?;
    if shown.validity.left(Timestamp::now()) > rotation.cert_rotation_remaining_time_threshold {
        return Ok(());
    }
    let wanted = Wanted {
        request: format!("{}-{}", agent.name, suffix()),
        common_name: &format!("{AGENT_PREFIX}{}", agent.name),
        lifetime: as_long_as(shown.validity.lifetime()),
        patience: PATIENCE,
    };
    let pair = ask(&agent.plane, &wanted).await?;
    let new = shown.with(&pair.certificate, &pair.key)?;
    // It is used only after it has been stored: then it survives a restart, and so does the old one until then.
    let secrets = Api::<Secret>::namespaced(agent.member.clone(), &rotation.karmada_kubeconfig_namespace);
    keep(&secrets, identity.file(), &text, &new).await?;
    identity.become_this(&new).await?;
    let until = Validity::of(pair.certificate.as_bytes())?.until;
    tracing::info!(%until, "the agent's certificate is renewed");
    Ok(())
}

/// Returns the duration to request for a certificate that lasts as long as this one. Without the correction, short ones would
/// grow with each renewal.
fn as_long_as(lifetime: Duration) -> Duration {
    let asked = lifetime.saturating_sub(BACKDATE);
    if asked < SHORT { asked.max(SHORTEST) } else { lifetime }
}

/// Returns why the control plane does not accept the agent, if the certificate shows it: it has expired, or is not valid yet.
pub(super) fn explain(error: anyhow::Error, identity: &Identity) -> anyhow::Error {
    explained(error, &identity.text(), identity.context(), Timestamp::now())
}

fn explained(error: anyhow::Error, text: &str, context: Option<&str>, now: Timestamp) -> anyhow::Error {
    let known = error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>());
    let is_refused = matches!(known, Some(kube::Error::Api(status)) if status.code == 401);
    let shown = Shown::read(text, context).ok().filter(|_| is_refused);
    let Some(Validity { from, until }) = shown.map(|shown| shown.validity) else { return error };
    if now >= until {
        error.context(format!(
            "the agent's certificate ended at {until}; hint: an administrator of the control plane gives it a new one, see \
             \"A certificate that has ended\" in docs/guides/pull-mode.md"
        ))
    } else if now < from {
        error.context(format!(
            "the agent's certificate begins at {from}; hint: set the clock of this machine right, for example with NTP"
        ))
    } else {
        error
    }
}

/// Stores a kubeconfig where the next start reads it: in place of the old one. A Secret with a different kubeconfig belongs to
/// another agent, such as that of a second control plane with the same member.
async fn keep(secrets: &Api<Secret>, file: &Path, old: &str, text: &str) -> anyhow::Result<()> {
    let known = secrets.get_opt(KUBECONFIG).await.context("cannot look for the Secret karmada-kubeconfig")?;
    let is_ours = |secret: &Secret| {
        let kept = secret.data.as_ref().and_then(|data| data.get(KUBECONFIG));
        kept.is_some_and(|kept| kept.0 == old.as_bytes())
    };
    if let Some(secret) = known.filter(is_ours) {
        // Only if it is still the version that was checked.
        let version = secret.metadata.resource_version;
        let patch = json!({
            "metadata": { "resourceVersion": version }, "data": { KUBECONFIG: STANDARD.encode(text) },
        });
        secrets
            .patch(KUBECONFIG, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .context("cannot write the Secret karmada-kubeconfig")?;
        return Ok(());
    }
    let (file, text) = (file.to_owned(), text.to_owned());
    tokio::task::spawn_blocking(move || replace(&file, &text)).await.context("cannot write the kubeconfig")?
}

/// Replaces a file atomically; only its owner can read it.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let beside = file.with_extension("new");
    let written = || {
        let _ = std::fs::remove_file(&beside);
        let mut new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        std::fs::rename(&beside, file)
    };
    written().with_context(|| format!("cannot write kubeconfig {}", file.display()))
}

/// The certificate of a kubeconfig.
struct Shown {
    kubeconfig: Kubeconfig,
    user: String,
    validity: Validity,
}

impl Shown {
    fn read(text: &str, context: Option<&str>) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(text).context("the kubeconfig is malformed")?;
        let chosen = context.or(kubeconfig.current_context.as_deref()).unwrap_or("");
        let user = kubeconfig
            .contexts
            .iter()
            .find(|known| known.name == chosen)
            .and_then(|known| known.context.as_ref()?.user.clone())
            .with_context(|| format!("the kubeconfig has no user in context {chosen:?}"))?;
        let auth = kubeconfig.auth_infos.iter().find(|known| known.name == user);
        let encoded = auth.and_then(|known| known.auth_info.as_ref()?.client_certificate_data.clone());
        let pem = encoded
            .and_then(|encoded| STANDARD.decode(encoded).ok())
            .with_context(|| format!("user {user:?} of the kubeconfig has no client-certificate-data"))?;
        Ok(Self { validity: Validity::of(&pem)?, kubeconfig, user })
    }

    /// Returns the kubeconfig with another certificate.
    fn with(mut self, certificate: &str, key: &str) -> anyhow::Result<String> {
        let user = self.user;
        let found = self.kubeconfig.auth_infos.iter_mut().find(|known| known.name == user);
        let auth = found.and_then(|known| known.auth_info.as_mut()).context("the kubeconfig has no user")?;
        auth.client_certificate_data = Some(STANDARD.encode(certificate));
        auth.client_key_data = Some(STANDARD.encode(key).into());
        // JSON is valid YAML, so no other writer is needed.
        serde_json::to_string_pretty(&self.kubeconfig).context("cannot write the kubeconfig")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;

    fn kubeconfig(name: &str) -> (String, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::default();
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2026, 1, 11);
        let certificate = parameters.self_signed(&key).expect("a certificate").pem();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {name}@karmada-apiserver\nclusters:\n- name: karmada-apiserver\n  \
             cluster: {{server: 'https://127.0.0.1:1'}}\ncontexts:\n- name: {name}@karmada-apiserver\n  context: {{cluster: \
             karmada-apiserver, user: {name}}}\nusers:\n- name: {name}\n  user: {{client-certificate-data: {}, \
             client-key-data: {}}}\n",
            STANDARD.encode(certificate),
            STANDARD.encode(key.serialize_pem()),
        );
        (text, key)
    }

    #[test]
    fn a_kubeconfig_shows_its_certificate_and_takes_another() {
        let (text, _) = kubeconfig("m1");
        let shown = Shown::read(&text, None).expect("a certificate");
        assert_eq!(shown.validity.lifetime(), Duration::from_secs(10 * 86_400));
        let other = rcgen::CertificateParams::default();
        let key = rcgen::KeyPair::generate().expect("a key");
        let pem = other.self_signed(&key).expect("a certificate").pem();
        let new = shown.with(&pem, &key.serialize_pem()).expect("a kubeconfig");
        assert!(
            Shown::read(&new, None).expect("read again").validity.lifetime()
                > Duration::from_secs(86_400 * 300)
        );
        let read = Kubeconfig::from_yaml(&new).expect("a kubeconfig");
        assert_eq!(read.current_context.as_deref(), Some("m1@karmada-apiserver"));
        assert!(Shown::read("{}", None).is_err());
    }

    #[test]
    fn a_certificate_lasts_as_long_as_the_one_before_it() {
        // The certificate that the signer issues.
        let issued = |asked: Duration| if asked < SHORT { asked + BACKDATE } else { asked };
        for seconds in [900, 3600, 8 * 3600 - 1, 8 * 3600, 8 * 3600 + 299, 8 * 3600 + 300, 31_536_000] {
            let lifetime = Duration::from_secs(seconds);
            assert_eq!(issued(as_long_as(lifetime)), lifetime);
        }
        assert_eq!(as_long_as(Duration::from_secs(60)), SHORTEST);
    }

    #[test]
    fn a_certificate_that_has_ended_is_told_with_a_remedy() {
        let (text, _) = kubeconfig("m1");
        let told = |code: u16, now: &str| {
            let status = json!({ "code": code, "message": "no", "reason": "No" });
            let status = serde_json::from_value(status).expect("a status");
            let error = anyhow::Error::from(kube::Error::Api(Box::new(status))).context("cannot list");
            format!("{:#}", explained(error, &text, None, now.parse().expect("a time")))
        };
        let ended = told(401, "2026-02-01T00:00:00Z");
        assert!(
            ended.starts_with("the agent's certificate ended at 2026-01-11T00:00:00Z; hint: "),
            "{ended}"
        );
        assert!(ended.contains("cannot list"), "{ended}");
        let early = told(401, "2025-12-01T00:00:00Z");
        assert!(
            early.starts_with("the agent's certificate begins at 2026-01-01T00:00:00Z; hint: "),
            "{early}"
        );
        for (code, now) in [(401, "2026-01-05T00:00:00Z"), (403, "2026-02-01T00:00:00Z")] {
            assert!(told(code, now).starts_with("cannot list"), "{code} {now}");
        }
    }

    /// A member with this kubeconfig in its Secret, or without a Secret, and the writes to it.
    fn member(kept: Option<&str>) -> (Api<Secret>, Arc<Mutex<Vec<Value>>>) {
        let written = Arc::new(Mutex::new(Vec::new()));
        let (kept, record) = (kept.map(str::to_owned), written.clone());
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (kept, record) = (kept.clone(), record.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
                if parts.method == http::Method::PATCH {
                    record.lock().push(serde_json::from_slice(&body).expect("a patch"));
                }
                let (code, answer) = match kept {
                    Some(kept) => (
                        200_u16,
                        json!({
                            "apiVersion": "v1", "kind": "Secret",
                            "metadata": { "name": KUBECONFIG, "resourceVersion": "7" },
                            "data": { KUBECONFIG: STANDARD.encode(kept) },
                        }),
                    ),
                    None => (
                        404,
                        json!({
                            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
                            "message": "not found",
                        }),
                    ),
                };
                let body = kube::client::Body::from(answer.to_string().into_bytes());
                http::Response::builder().status(code).body(body).map_err(|error| error.to_string())
            }
        });
        (Api::namespaced(kube::Client::new(service, "default"), "karmada-system"), written)
    }

    #[tokio::test]
    async fn a_new_kubeconfig_is_kept_where_the_old_one_is_and_another_agents_stays() {
        for (what, kept, in_secret) in [
            ("the agent's own", Some("old"), true),
            ("that of another agent", Some("another's"), false),
            ("none", None, false),
        ] {
            let place = tempfile::tempdir().expect("a directory");
            let file = place.path().join("agent.kubeconfig");
            std::fs::write(&file, "old").expect("a file");
            let (secrets, written) = member(kept);
            keep(&secrets, &file, "old", "new").await.expect("kept");
            let patch = json!({ "metadata": { "resourceVersion": "7" }, "data": { KUBECONFIG: STANDARD.encode("new") } });
            assert_eq!(*written.lock(), if in_secret { vec![patch] } else { vec![] }, "{what}");
            let text = std::fs::read_to_string(&file).expect("a file");
            assert_eq!(text, if in_secret { "old" } else { "new" }, "{what}");
        }
    }

    #[test]
    fn a_new_kubeconfig_replaces_the_old_one_and_only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("agent.kubeconfig");
        std::fs::write(&file, "old").expect("a file");
        replace(&file, "new").expect("replaced");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "new");
        assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 1);
    }
}
