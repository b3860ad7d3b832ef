//! Approves the certificate requests of agents that are entitled to a certificate: `agentcsrapproving`.
//!
//! Watches: CertificateSigningRequest.
//! Writes: its condition Approved.
//!
//! An agent may request a certificate for its own name (`selfclusteragent`); a user with the right
//! `clusteragent`, such as a bootstrap token, may request one for a new agent. `admission::agents` recognises
//! the requests of agents. People have to answer all others.

#[cfg(test)]
mod on_server;

use std::sync::Arc;

use admission::agents::CertificateRequest;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::PostParams;
use runtime::{Error, Outcome, Queue, Reconcile, controller};
use serde_json::json;

use crate::plane::Plane;
use crate::table::Start;

const COMPONENT: &str = "agent-csr-approving-controller";
const WORKERS: usize = 2;
const APPROVED: &str = "Approved";
const REASON: &str = "AutoApproved";

/// The rights by which a request is approved, with the message for each.
const RIGHTS: [(&str, &str); 2] = [
    ("selfclusteragent", "Auto approving self karmada agent certificate after SubjectAccessReview."),
    ("clusteragent", "Auto approving karmada agent certificate after SubjectAccessReview."),
];

struct Controller {
    plane: Arc<Plane>,
}

pub(crate) fn wire(plane: &Arc<Plane>) -> Start {
    let (controller, queue) = subscribed(plane);
    Box::new(move || controller::run(&controller, &queue, WORKERS, &controller.plane.supervisor))
}

fn subscribed(plane: &Arc<Plane>) -> (Arc<Controller>, Arc<Queue<String>>) {
    let queue: Arc<Queue<String>> = Queue::new(COMPONENT);
    plane.tell_panics_by_name(&queue, COMPONENT, &plane.mirrors.certificate_requests);
    let pushed = queue.clone();
    plane.mirrors.certificate_requests.subscribe(move |change| {
        if change.new.as_deref().is_some_and(is_pending) {
            pushed.push(change.key.name.clone());
        }
    });
    (Arc::new(Controller { plane: plane.clone() }), queue)
}

/// Returns whether a request is still unanswered.
fn is_pending(request: &CertificateSigningRequest) -> bool {
    let status = request.status.clone().unwrap_or_default();
    let answered =
        status.conditions.iter().flatten().any(|known| matches!(known.type_.as_str(), APPROVED | "Denied"));
    status.certificate.is_none() && !answered && request.metadata.deletion_timestamp.is_none()
}

/// A request that may be approved.
pub(crate) struct View {
    request: Arc<CertificateSigningRequest>,
    /// Whose certificate is asked for, if it is an agent's.
    agent: Option<String>,
    /// Which of [`RIGHTS`] the requester has, among those that matter.
    rights: [bool; 2],
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    Nothing(&'static str),
    Approve(&'static str),
}

fn decide(view: &View) -> Plan {
    if !is_pending(&view.request) {
        return Plan::Nothing("it has been answered");
    }
    let Some(agent) = &view.agent else { return Plan::Nothing("it is not an agent's") };
    let is_own = view.request.spec.username.as_ref() == Some(agent);
    let [own, any] = view.rights;
    let [(_, told_own), (_, told_any)] = RIGHTS;
    if is_own && own {
        return Plan::Approve(told_own);
    }
    if any { Plan::Approve(told_any) } else { Plan::Nothing("the requester may not") }
}

impl Controller {
    async fn may(&self, spec: &CertificateSigningRequestSpec, right: &str) -> Result<bool, Error> {
        let review: SubjectAccessReview = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
                "resourceAttributes": {
                    "group": "certificates.k8s.io", "version": "*", "resource": "certificatesigningrequests",
                    "subresource": right, "verb": "create",
                },
            },
        }))?;
        // A review is a question: nothing is stored, so this is not for the `Writer`.
        let reviews = Api::<SubjectAccessReview>::all(self.plane.client().clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

impl Reconcile for Controller {
    type Key = String;
    type View = View;
    type Plan = Plan;

    async fn observe(&self, name: &String) -> Result<Option<View>, Error> {
        let Some(request) = self.plane.mirrors.certificate_requests.get("", name) else { return Ok(None) };
        let read = CertificateRequest::read(&serde_json::to_value(request.as_ref())?);
        let agent = read.filter(|_| is_pending(&request)).map(|read| read.common_name);
        let mut rights = [false; 2];
        if agent.is_some() {
            for (has, (right, _)) in rights.iter_mut().zip(RIGHTS) {
                *has = self.may(&request.spec, right).await?;
            }
        }
        Ok(Some(View { request, agent, rights }))
    }

    fn decide(view: &View, _: Timestamp) -> Plan {
        decide(view)
    }

    async fn apply(&self, name: &String, view: View, plan: Plan) -> Result<Outcome, Error> {
        let message = match plan {
            Plan::Approve(message) => message,
            Plan::Nothing(why) => {
                tracing::debug!(controller = COMPONENT, request = name, why, "not approved");
                return Ok(Outcome::Done);
            }
        };
        let now = Time(Timestamp::now());
        let mut approved = view.request.as_ref().clone();
        let conditions = approved.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.push(CertificateSigningRequestCondition {
            type_: APPROVED.to_owned(),
            status: "True".to_owned(),
            reason: Some(REASON.to_owned()),
            message: Some(message.to_owned()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        });
        let mirror = &self.plane.mirrors.certificate_requests;
        self.plane.writer.update_approval(mirror, &view.request, &approved).await?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fixtures::{deleting, merged, read};

    fn view(requester: &str, agent: Option<&str>, rights: [bool; 2], status: Value) -> View {
        let request = json!({
            "metadata": { "name": "r" },
            "spec": { "request": "", "signerName": "s", "username": requester },
            "status": status,
        });
        View { request: Arc::new(read(request)), agent: agent.map(str::to_owned), rights }
    }

    #[test]
    fn who_gets_a_certificate() {
        let (a, token) = ("system:karmada:agent:a", "system:bootstrap:abcdef");
        let [(_, own), (_, any)] = RIGHTS;
        let approved = json!({ "conditions": [{ "type": "Approved", "status": "True" }] });
        let cases = [
            ("itself", view(a, Some(a), [true, false], json!({})), Plan::Approve(own)),
            ("a token", view(token, Some(a), [false, true], json!({})), Plan::Approve(any)),
            (
                "the right to one's own is for one's own",
                view(token, Some(a), [true, false], json!({})),
                Plan::Nothing("the requester may not"),
            ),
            (
                "without rights",
                view(a, Some(a), [false, false], json!({})),
                Plan::Nothing("the requester may not"),
            ),
            (
                "somebody else's",
                view(a, None, [true, true], json!({})),
                Plan::Nothing("it is not an agent's"),
            ),
            ("answered", view(a, Some(a), [true, true], approved), Plan::Nothing("it has been answered")),
            ("itself, with both rights", view(a, Some(a), [true, true], json!({})), Plan::Approve(own)),
            ("itself, by the wider right", view(a, Some(a), [false, true], json!({})), Plan::Approve(any)),
            (
                "the agent of another cluster",
                view("system:karmada:agent:b", Some(a), [true, false], json!({})),
                Plan::Nothing("the requester may not"),
            ),
            ("a token with both rights", view(token, Some(a), [true, true], json!({})), Plan::Approve(any)),
        ];
        for (name, view, expected) in cases {
            assert_eq!(decide(&view), expected, "{name}");
        }
    }

    #[test]
    fn which_requests_are_pending() {
        let condition =
            |kind: &str| json!({ "status": { "conditions": [{ "type": kind, "status": "True" }] } });
        let cases = [
            ("it is new", json!({}), true),
            ("it has an empty status", json!({ "status": {} }), true),
            ("somebody approved it", condition("Approved"), false),
            ("somebody denied it", condition("Denied"), false),
            ("it failed, which is the signer's word", condition("Failed"), true),
            ("it has its certificate", json!({ "status": { "certificate": "eA==" } }), false),
            ("it is being deleted", deleting(), false),
        ];
        for (name, otherwise, expected) in cases {
            let base = json!({ "metadata": { "name": "r" }, "spec": { "request": "", "signerName": "s" } });
            let request: CertificateSigningRequest = read(merged(base, otherwise));
            assert_eq!(is_pending(&request), expected, "{name}");
        }
    }
}
