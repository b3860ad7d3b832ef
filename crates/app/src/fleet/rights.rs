//! What a user may see of each member.
//!
//! A cached object is shown to users who could request it from the member through the cluster proxy. The member is asked by a
//! SubjectAccessReview with the caller's name and groups, and its answer is cached for a while. Administrators (`system:masters`)
//! are not checked, since every API server lets them do everything. If a member does not answer, its previous answer remains
//! valid; without one, nothing of it is shown. Requests do not wait for a member that has just failed to answer.
//!
//! This is stricter than Karmada, which shows cached objects to all users who may use the path.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver::auth::User;
use apiserver::auth::user::MASTERS;
use fleet::Fleet;
use futures::future::join_all;
use http::Request;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// How long an answer is valid.
const FRESH: Duration = Duration::from_secs(30);
/// How long an answer is valid if the member does not give another one.
const KEPT: Duration = Duration::from_secs(600);
/// How long a member may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a member that did not answer is not asked again.
const REST: Duration = Duration::from_secs(10);
/// How many answers are cached.
const MOST: usize = 65_536;
/// The longest question whose answer is kept, in bytes. Callers choose names and namespaces, which may be as long as a path; a real one
/// has some hundred.
const QUESTION: usize = 1 << 10;

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A request in a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    cluster: Arc<str>,
    user: String,
    groups: Vec<String>,
    access: Access,
}

impl Question {
    fn size(&self) -> usize {
        let Access { verb, group, version, resource, subresource, namespace, name } = &self.access;
        let texts = [&self.user, verb, group, version, resource, subresource, namespace, name];
        texts.into_iter().chain(&self.groups).map(String::len).fold(0, usize::saturating_add)
    }
}

/// Which clusters show themselves to a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    All,
    /// The first ones do, the second ones do not.
    Some {
        yes: Vec<Arc<str>>,
        no: Vec<Arc<str>>,
    },
}

impl Seen {
    pub(crate) fn has(&self, cluster: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some { yes, .. } => yes.iter().any(|name| **name == *cluster),
        }
    }

    /// Returns whether there are clusters but none shows its objects.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Some { yes, no } if yes.is_empty() && !no.is_empty())
    }
}

#[derive(Default)]
pub(crate) struct Rights {
    known: Mutex<HashMap<Question, (bool, Instant)>>,
    /// The members that did not answer, and when.
    silent: Mutex<HashMap<Arc<str>, Instant>>,
}

impl Rights {
    /// Returns which of the clusters allow the caller's request.
    pub(crate) async fn seen(
        &self,
        fleet: &Fleet,
        user: &User,
        clusters: &[Arc<str>],
        access: &Access,
    ) -> Seen {
        if user.in_group(MASTERS) {
            return Seen::All;
        }
        let asked = clusters.iter().map(|cluster| async move {
            let question = question(cluster, user, access.clone());
            (cluster.clone(), self.may(fleet, question).await)
        });
        let (yes, no): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().partition(|(_, may)| *may);
        let names = |list: Vec<(Arc<str>, bool)>| list.into_iter().map(|(name, _)| name).collect();
        Seen::Some { yes: names(yes), no: names(no) }
    }

    async fn may(&self, fleet: &Fleet, question: Question) -> bool {
        let known = self.known.lock().get(&question).copied();
        if let Some((may, since)) = known
            && since.elapsed() < FRESH
        {
            return may;
        }
        let answer = if self.is_silent(&question.cluster) {
            None
        } else {
            let answer = tokio::time::timeout(PATIENCE, ask(fleet, &question)).await.ok().flatten();
            let mut silent = self.silent.lock();
            match answer {
                Some(_) => silent.remove(&question.cluster),
                None => silent.insert(question.cluster.clone(), Instant::now()),
            };
            answer
        };
        match (answer, known) {
            (Some(may), _) => {
                self.keep(question, may);
                may
            }
            (None, Some((may, since))) => may && since.elapsed() < KEPT,
            (None, None) => false,
        }
    }
}

impl Rights {
    fn keep(&self, question: Question, may: bool) {
        if question.size() > QUESTION {
            return;
        }
        let mut all = self.known.lock();
        if all.len() >= MOST {
            all.retain(|_, (_, since)| since.elapsed() < FRESH);
            if all.len() >= MOST {
                all.clear();
            }
        }
        all.insert(question, (may, Instant::now()));
    }

    fn is_silent(&self, cluster: &str) -> bool {
        self.silent.lock().get(cluster).is_some_and(|since| since.elapsed() < REST)
    }
}

/// Returns the question about a caller; the groups are those that the member assigns to callers through the proxy.
fn question(cluster: &Arc<str>, user: &User, access: Access) -> Question {
    let own = |group: &&String| ![AUTHENTICATED, UNAUTHENTICATED].contains(&group.as_str());
    let mut groups: Vec<String> = user.groups.iter().filter(own).cloned().collect();
    groups.push(if user.is_anonymous() { UNAUTHENTICATED } else { AUTHENTICATED }.to_owned());
    Question { cluster: cluster.clone(), user: user.name.clone(), groups, access }
}

async fn ask(fleet: &Fleet, question: &Question) -> Option<bool> {
    let client = fleet.client(&question.cluster)?;
    let access = &question.access;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": question.user,
            "groups": question.groups,
            "resourceAttributes": {
                "verb": access.verb, "group": access.group, "version": access.version, "resource": access.resource,
                "subresource": access.subresource, "namespace": access.namespace, "name": access.name,
            },
        },
    });
    let request = Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .ok()?;
    let answer: Value = client.request(request).await.ok()?;
    answer.pointer("/status/allowed").and_then(Value::as_bool)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let text = |text: &str| text.to_owned();
        Access {
            verb: text("list"),
            group: text(""),
            version: text("v1"),
            resource: text("pods"),
            subresource: text(""),
            namespace: text(""),
            name: text(""),
        }
    }

    #[test]
    fn a_member_is_asked_about_the_caller_as_the_proxy_would_bring_him() {
        let groups = vec!["dev".to_owned(), AUTHENTICATED.to_owned()];
        let jane = User { name: "jane".to_owned(), groups, ..User::default() };
        assert_eq!(question(&"m1".into(), &jane, access()).groups, ["dev", AUTHENTICATED]);
        assert_eq!(question(&"m1".into(), &User::anonymous(), access()).groups, [UNAUTHENTICATED]);
    }

    #[test]
    fn finding_3_questions_of_any_length_are_not_kept() {
        let rights = Rights::default();
        let jane = User { name: "jane".to_owned(), ..User::default() };
        for length in [10, 253, 100_000] {
            let asked = Access { name: "x".repeat(length), namespace: "y".repeat(length), ..access() };
            rights.keep(question(&"m1".into(), &jane, asked), true);
        }
        let sizes: Vec<usize> = rights.known.lock().keys().map(Question::size).collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size <= QUESTION), "{sizes:?}");
    }

    #[tokio::test]
    async fn without_an_answer_nothing_is_shown_unless_there_was_one_before() {
        let (rights, fleet) = (Rights::default(), Fleet::new(1 << 20));
        let clusters: Vec<Arc<str>> = vec!["m1".into(), "m2".into()];
        let jane = User { name: "jane".to_owned(), ..User::default() };
        let seen = rights.seen(&fleet, &jane, &clusters, &access()).await;
        assert!(seen.is_refused() && !seen.has("m1"));
        assert!(rights.is_silent("m1") && rights.is_silent("m2"));
        rights.silent.lock().clear();
        let old = Instant::now().checked_sub(FRESH * 2).expect("the machine runs for a minute");
        rights.known.lock().insert(question(&clusters[0], &jane, access()), (true, old));
        let seen = rights.seen(&fleet, &jane, &clusters, &access()).await;
        assert!(seen.has("m1") && !seen.has("m2") && !seen.is_refused());
        assert_eq!(rights.seen(&fleet, &User::system("admin"), &clusters, &access()).await, Seen::All);
    }
}
