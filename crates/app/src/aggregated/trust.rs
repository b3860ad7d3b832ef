//! Whom an aggregated server trusts: the authorities that the API server in front publishes in
//! `kube-system/extension-apiserver-authentication`, and that API server itself for tokens and rights.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use apiserver::auth::rbac::Attributes;
use apiserver::auth::x509::Authority;
use apiserver::auth::{User, front_proxy};
use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
const MASTERS: &str = "system:masters";

/// How long an answer about rights or a token is cached, as in upstream's servers.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many answers are cached at most.
const ANSWERS: usize = 10_000;
/// The longest question whose answer is remembered, 8 KiB. Strangers choose the token that is asked about, and it may be as long as the
/// head of a request; a real one has one or two KiB.
const QUESTION: usize = 8 << 10;

/// The authorities and names of the API server in front.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    clients: Option<Authority>,
    proxies: Authority,
    /// Empty if any certificate of the authority is accepted.
    allowed: Vec<String>,
    /// The source from which it was read.
    pub(super) source: String,
}

impl Trust {
    /// Reads what the API server publishes.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let map =
            maps.get_opt(NAME).await.with_context(|| format!("cannot read ConfigMap {NAMESPACE}/{NAME}"))?;
        let Some(data) = map.and_then(|map| map.data) else {
            bail!(
                "there is no ConfigMap {NAMESPACE}/{NAME}; hint: the API server needs --requestheader-client-ca-file"
            );
        };
        let text = |key: &str| data.get(key).map(String::as_str).filter(|text| !text.trim().is_empty());
        let list = |key: &str| -> anyhow::Result<Vec<String>> {
            let text = text(key).unwrap_or("[]");
            serde_json::from_str(text)
                .with_context(|| format!("{key} in {NAMESPACE}/{NAME} is not a list of names"))
        };
        let Some(proxies) = text("requestheader-client-ca-file") else {
            bail!(
                "{NAMESPACE}/{NAME} names no authority of front proxies; hint: the API server needs --requestheader-client-ca-file"
            );
        };
        for (key, expected) in [
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-group-headers", "X-Remote-Group"),
        ] {
            let names = list(key)?;
            if !names.iter().any(|name| name.eq_ignore_ascii_case(expected)) {
                bail!("{key} in {NAMESPACE}/{NAME} is {names:?}; this server reads {expected}");
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = |pem: &str| {
            Authority::new(pem, provider.clone())
                .with_context(|| format!("an authority in {NAMESPACE}/{NAME} cannot be read"))
        };
        Ok(Self {
            clients: text("client-ca-file").map(authority).transpose()?,
            proxies: authority(proxies)?,
            allowed: list("requestheader-allowed-names")?,
            source: format!("{data:?}"),
        })
    }

    /// Returns the caller from the handshake and the headers; `None` if neither identifies one.
    pub(super) fn identify(
        &self,
        chain: &[CertificateDer<'_>],
        headers: &HeaderMap,
    ) -> Result<Option<User>, Status> {
        if chain.is_empty() {
            return Ok(None);
        }
        let allowed = |name: &String| self.allowed.is_empty() || self.allowed.contains(name);
        if self.proxies.identify(chain).is_some_and(|proxy| allowed(&proxy.name))
            && let Some(user) = front_proxy::identify(headers)?
        {
            return Ok(Some(user));
        }
        match self.clients.as_ref().and_then(|clients| clients.identify(chain)) {
            Some(user) => Ok(Some(user)),
            // An untrusted certificate is a failed credential, not a missing one.
            None => Err(Status::unauthorized()),
        }
    }
}

/// Asks the API server in front about tokens and rights.
pub(super) struct Delegate {
    client: Client,
    answers: Mutex<HashMap<String, (Instant, Answer)>>,
}

#[derive(Clone)]
enum Answer {
    User(Option<User>),
    Allowed(bool, String),
}

impl Delegate {
    pub(super) fn new(client: Client) -> Self {
        Self { client, answers: Mutex::default() }
    }

    fn known(&self, question: &str) -> Option<Answer> {
        let answers = self.answers.lock();
        answers.get(question).filter(|(at, _)| at.elapsed() < REMEMBERED).map(|(_, answer)| answer.clone())
    }

    fn remember(&self, question: String, answer: Answer) {
        if question.len() > QUESTION {
            return;
        }
        let mut answers = self.answers.lock();
        if answers.len() >= ANSWERS {
            answers.retain(|_, (at, _)| at.elapsed() < REMEMBERED);
        }
        if answers.len() < ANSWERS {
            answers.insert(question, (Instant::now(), answer));
        }
    }

    /// Returns the owner of a token.
    pub(super) async fn token(&self, token: &str) -> Result<User, Status> {
        let question = format!("token {token}");
        let found = match self.known(&question) {
            Some(Answer::User(found)) => found,
            _ => {
                let review = TokenReview {
                    spec: TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() },
                    ..TokenReview::default()
                };
                let reviews: Api<TokenReview> = Api::all(self.client.clone());
                let review =
                    reviews.create(&PostParams::default(), &review).await.map_err(|error| away(&error))?;
                let status = review.status.unwrap_or_default();
                let found = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
                    name: user.username.unwrap_or_default(),
                    uid: user.uid.unwrap_or_default(),
                    groups: user.groups.unwrap_or_default(),
                    extra: user.extra.unwrap_or_default(),
                });
                self.remember(question, Answer::User(found.clone()));
                found
            }
        };
        found.ok_or_else(Status::unauthorized)
    }

    /// Refuses a request that the user may not make, in the words of an API server.
    pub(super) async fn authorize(&self, user: &User, wanted: &Attributes<'_>) -> Result<(), Status> {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let spec = review(user, wanted);
        let question = serde_json::to_string(&spec).unwrap_or_default();
        let (allowed, reason) = match self.known(&question) {
            Some(Answer::Allowed(allowed, reason)) => (allowed, reason),
            _ => {
                let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
                let asked = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
                let answer =
                    reviews.create(&PostParams::default(), &asked).await.map_err(|error| away(&error))?;
                let status = answer.status.unwrap_or_default();
                let (allowed, reason) = (status.allowed, status.reason.unwrap_or_default());
                self.remember(question, Answer::Allowed(allowed, reason.clone()));
                (allowed, reason)
            }
        };
        if allowed { Ok(()) } else { Err(forbidden(user, wanted, &reason)) }
    }
}

fn away(error: &kube::Error) -> Status {
    Status::bare_internal(format!("the API server in front cannot be asked: {error}"))
}

fn review(user: &User, wanted: &Attributes<'_>) -> SubjectAccessReviewSpec {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut spec = SubjectAccessReviewSpec {
        user: text(&user.name),
        uid: text(&user.uid),
        groups: Some(user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        ..SubjectAccessReviewSpec::default()
    };
    match wanted.path {
        Some(path) => {
            spec.non_resource_attributes =
                Some(NonResourceAttributes { path: text(path), verb: text(wanted.verb) });
        }
        None => {
            spec.resource_attributes = Some(ResourceAttributes {
                group: text(wanted.group),
                version: text(wanted.version),
                resource: text(wanted.resource),
                subresource: text(wanted.subresource),
                namespace: text(wanted.namespace),
                name: text(wanted.name),
                verb: text(wanted.verb),
                ..ResourceAttributes::default()
            });
        }
    }
    spec
}

fn forbidden(user: &User, wanted: &Attributes<'_>, reason: &str) -> Status {
    let colon = if reason.is_empty() { "" } else { ": " };
    if let Some(path) = wanted.path {
        let why = format!("User {:?} cannot {} path {path:?}{colon}{reason}", user.name, wanted.verb);
        return Status::forbidden(&GroupResource::new("", ""), "", &why);
    }
    let slash = if wanted.subresource.is_empty() { "" } else { "/" };
    let scope = if wanted.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", wanted.namespace)
    };
    let resource = format!("{}{slash}{}", wanted.resource, wanted.subresource);
    let why = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {scope}{colon}{reason}",
        user.name, wanted.verb, wanted.group
    );
    Status::forbidden(&GroupResource::new(wanted.group, wanted.resource), wanted.name, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finding_3_what_strangers_make_up_is_not_remembered_at_length() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let delegate = Delegate::new(Client::try_from(config).unwrap());
        for number in 0..2 * ANSWERS {
            let length = if number % 2 == 0 { 10 } else { 100_000 };
            delegate.remember(format!("token {number} {}", "x".repeat(length)), Answer::User(None));
        }
        let answers = delegate.answers.lock();
        assert_eq!(answers.len(), ANSWERS);
        assert!(answers.keys().all(|question| question.len() <= QUESTION), "it would be a gigabyte");
    }

    #[test]
    fn a_review_asks_for_exactly_what_was_wanted() {
        let user = User { name: "jane".to_owned(), groups: vec!["dev".to_owned()], ..User::default() };
        let proxy = Attributes {
            verb: "get",
            group: "cluster.karmada.io",
            version: "v1alpha1",
            resource: "clusters",
            subresource: "proxy",
            name: "m1",
            ..Attributes::default()
        };
        let spec = review(&user, &proxy);
        assert_eq!((spec.user.as_deref(), spec.non_resource_attributes), (Some("jane"), None));
        let asked = spec.resource_attributes.expect("a resource");
        assert_eq!((asked.subresource.as_deref(), asked.namespace), (Some("proxy"), None));
        let refused = forbidden(&user, &proxy, "").message;
        assert_eq!(
            refused,
            "clusters.cluster.karmada.io \"m1\" is forbidden: User \"jane\" cannot get resource \"clusters/proxy\" in API group \
             \"cluster.karmada.io\" at the cluster scope"
        );
    }
}
