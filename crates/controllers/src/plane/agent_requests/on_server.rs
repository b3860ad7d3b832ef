//! Certificate requests of agents, on a server.

use base64::Engine as _;
use http::Method;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams};
use runtime::Key;
use serde_json::Value;

use super::*;
use crate::fixtures::merged;
use crate::world::{World, drain};

const APPROVED_IT: &str = "PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/*-r/approval";
const ASKED: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

struct Test {
    world: World,
    controller: Arc<Controller>,
    queue: Arc<Queue<String>>,
    /// The name of the request.
    name: String,
    /// The user name of the agent of cluster `m1`.
    agent: String,
    /// The user name of a bootstrap token.
    token: String,
}

impl Test {
    async fn new() -> Self {
        let world = World::new().await;
        let (controller, queue) = subscribed(&world.plane);
        let agent = format!("system:karmada:agent:{}", world.own("m1"));
        let token = format!("system:bootstrap:{}", world.own("abcdef"));
        Self { name: world.own("r"), world, controller, queue, agent, token }
    }

    /// A request of `requester` for a certificate of this name and organization. The server notes as the requester who
    /// created it, which is this test; the mirror has somebody else.
    async fn request(&self, requester: &str, common_name: &str, organization: &str, otherwise: Value) {
        let signing = signing_request(common_name, organization);
        let base = json!({
            "metadata": { "name": self.name },
            "spec": {
                "request": base64::engine::general_purpose::STANDARD.encode(signing),
                "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["client auth", "digital signature"],
            },
        });
        self.see(self.world.create(merged(base, otherwise)).await, requester);
    }

    /// Adds the request to the mirror as the server has it, but as made by somebody else.
    fn see(&self, mut request: CertificateSigningRequest, requester: &str) {
        request.spec.username = Some(requester.to_owned());
        request.spec.groups = Some(vec!["system:authenticated".to_owned()]);
        self.world.environment.mirrors.certificate_requests.note(request);
    }

    /// A request of the agent for its own certificate.
    async fn own_request(&self) {
        self.request(&self.agent, &self.agent, "system:karmada:agents", json!({})).await;
    }

    /// Gives a right to a user.
    async fn grant(&self, user: &str, right: &str) {
        let (group, name) = ("rbac.authorization.k8s.io", self.world.own(right));
        let rule = json!({
            "apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
            "resources": [format!("certificatesigningrequests/{right}")],
        });
        let role = json!({ "metadata": { "name": name }, "rules": [rule] });
        self.world.create::<ClusterRole>(role).await;
        let bound = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": user }],
        });
        self.world.create::<ClusterRoleBinding>(bound).await;
    }

    async fn once(&self) -> Outcome {
        self.world.once(self.controller.as_ref(), &self.name).await
    }

    async fn stored(&self) -> CertificateSigningRequest {
        self.world.api::<CertificateSigningRequest>("").get(&self.name).await.expect("it exists")
    }

    /// The answers as the server has them: type, reason and message.
    async fn answers(&self) -> Vec<(String, String, String)> {
        let conditions = self.stored().await.status.and_then(|status| status.conditions);
        let words = |condition: CertificateSigningRequestCondition| {
            let (reason, message) = (condition.reason, condition.message);
            (condition.type_, reason.unwrap_or_default(), message.unwrap_or_default())
        };
        conditions.unwrap_or_default().into_iter().map(words).collect()
    }

    /// A person says no.
    async fn deny(&self) -> CertificateSigningRequest {
        let no = json!({ "type": "Denied", "status": "True", "reason": "ByHand", "message": "who is that?" });
        let patch = Patch::Merge(json!({ "status": { "conditions": [no] } }));
        let api = self.world.api::<CertificateSigningRequest>("");
        api.patch_subresource("approval", &self.name, &PatchParams::default(), &patch).await.expect("denied")
    }

    async fn end(self) {
        self.world.supervisor.stop().await;
    }
}

fn signing_request(common_name: &str, organization: &str) -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.serialize_request(&key).expect("a request").pem().expect("a text")
}

fn approved(message: &str) -> [(String, String, String); 1] {
    [(APPROVED.to_owned(), REASON.to_owned(), message.to_owned())]
}

#[tokio::test]
async fn an_agent_that_may_have_its_own_certificate_gets_it_once() {
    let test = Test::new().await;
    test.grant(&test.agent, "selfclusteragent").await;
    test.own_request().await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [ASKED, ASKED, APPROVED_IT]);
    let [(_, own), _] = RIGHTS;
    assert_eq!(test.answers().await, approved(own));
    let conditions = test.stored().await.status.and_then(|status| status.conditions).unwrap_or_default();
    assert!(conditions[0].last_update_time.is_some() && conditions[0].last_transition_time.is_some());
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "the mirror knows the answer, so nobody is asked again");
    test.end().await;
}

#[tokio::test]
async fn a_token_that_may_register_clusters_gets_a_certificate_for_a_new_agent() {
    let test = Test::new().await;
    test.grant(&test.token, "clusteragent").await;
    test.request(&test.token, &test.agent, "system:karmada:agents", json!({})).await;
    assert_eq!(test.once().await, Outcome::Done);
    let [_, (_, any)] = RIGHTS;
    assert_eq!(test.answers().await, approved(any));
    test.end().await;
}

#[tokio::test]
async fn requests_without_the_right_are_left_to_people() {
    let test = Test::new().await;
    test.own_request().await;
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [ASKED, ASKED], "it is only asked for");
    // The right of somebody else does not help, nor does the right to one's own certificate for another's.
    test.grant(&test.token, "selfclusteragent").await;
    assert_eq!(test.once().await, Outcome::Done);
    let seen =
        test.world.patch(&test.stored().await, json!({ "metadata": { "labels": { "a": "b" } } })).await;
    test.see(seen, &test.token);
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [ASKED; 4]);
    assert!(test.answers().await.is_empty());
    // An administrator gives it the right that it lacks.
    test.grant(&test.token, "clusteragent").await;
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.answers().await.len(), 1);
    test.end().await;
}

#[tokio::test]
async fn requests_that_are_not_an_agents_are_not_looked_into() {
    // The requester may register any agent in each of these cases.
    let cases = [
        ("another organization", "system:karmada:agent:m1", "system:nodes", json!({})),
        ("another name", "system:node:m1", "system:karmada:agents", json!({})),
        (
            "another signer",
            "system:karmada:agent:m1",
            "system:karmada:agents",
            json!({ "spec": { "signerName": "example.com/signer" } }),
        ),
        (
            "other usages",
            "system:karmada:agent:m1",
            "system:karmada:agents",
            json!({ "spec": { "usages": ["client auth", "server auth", "digital signature"] } }),
        ),
    ];
    for (case, common_name, organization, otherwise) in cases {
        let test = Test::new().await;
        test.grant(&test.token, "clusteragent").await;
        test.request(&test.token, common_name, organization, otherwise).await;
        test.world.writes();
        assert_eq!(test.once().await, Outcome::Done, "{case}");
        assert_eq!(test.world.writes(), [""; 0], "{case}");
        test.end().await;
    }
}

#[tokio::test]
async fn what_a_person_has_denied_meanwhile_stays_denied() {
    let test = Test::new().await;
    test.grant(&test.agent, "selfclusteragent").await;
    test.own_request().await;
    let denied = test.deny().await;
    let outcome = test.once().await;
    assert!(matches!(outcome, Outcome::Failed { conflict: true, .. }), "{outcome:?}");
    let answers = test.answers().await;
    assert_eq!((answers.len(), answers[0].0.as_str()), (1, "Denied"));
    test.see(denied, &test.agent);
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0], "it has been answered");
    test.end().await;
}

#[tokio::test]
async fn what_fails_is_tried_again() {
    let test = Test::new().await;
    test.grant(&test.agent, "selfclusteragent").await;
    test.own_request().await;
    test.world.writes();
    let failed = |reason: &str| Outcome::Failed { error: format!("refused: {reason}"), conflict: false };
    test.world.refuse(Method::POST, "/subjectaccessreviews", 500, "InternalError");
    assert_eq!(test.once().await, failed("InternalError"));
    assert_eq!(test.world.writes(), [ASKED], "whether it may have one is not known yet");
    test.world.refuse(Method::PATCH, "/approval", 403, "Forbidden");
    assert_eq!(test.once().await, failed("Forbidden"));
    assert!(test.answers().await.is_empty());
    assert_eq!(test.once().await, Outcome::Done);
    let [(_, own), _] = RIGHTS;
    assert_eq!(test.answers().await, approved(own));
    test.end().await;
}

#[tokio::test]
async fn what_brings_a_request_up() {
    let test = Test::new().await;
    test.own_request().await;
    assert_eq!(drain(&test.queue), std::slice::from_ref(&test.name), "it is new");
    let denied = test.deny().await;
    test.see(denied, &test.agent);
    assert_eq!(drain(&test.queue), [""; 0], "it has been answered");
    test.world.environment.mirrors.certificate_requests.remove(&Key::new("", &test.name), 0);
    assert_eq!(drain(&test.queue), [""; 0], "it is gone");
    test.world.writes();
    assert_eq!(test.once().await, Outcome::Done);
    assert_eq!(test.world.writes(), [""; 0]);
    test.end().await;
}

#[tokio::test]
async fn a_panic_is_told_on_the_request() {
    let test = Test::new().await;
    test.own_request().await;
    drain(&test.queue);
    let told = test.world.panicked(&test.queue, test.name.clone()).await;
    assert_eq!(told, "agent-csr-approving-controller panicked and tries again later: by accident");
    test.end().await;
}
