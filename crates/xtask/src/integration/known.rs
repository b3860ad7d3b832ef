//! Integration tests of Kubernetes that are left out or known to fail, and why.

/// Left out: end of the package's path, test or one case of it, reason.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    ("auth", "TestSubjectAccessReview", AUTHORIZER),
    ("auth", "TestSelfSubjectAccessReview", AUTHORIZER),
    ("auth", "TestLocalSubjectAccessReview", AUTHORIZER),
    ("auth", "TestImpersonateIsForbidden", AUTHORIZER),
    ("auth", "TestAuthorizationAttributeDetermination", AUTHORIZER),
    ("auth", "TestNamespaceAuthorization", AUTHORIZER),
    ("auth", "TestKindAuthorization", AUTHORIZER),
    ("auth", "TestReadOnlyAuthorization", AUTHORIZER),
    ("auth", "TestAuthModeAlwaysDeny", AUTHORIZER),
    ("auth", "TestConstrainedImpersonation", "reads and resets figures inside the server's process"),
    ("auth", "TestServiceAccountTokenCreate", "takes the signer out of the server's process"),
    ("auth", "TestRBACContextContamination", AUTHORIZER),
    ("auth", "TestGetsSelfAttributes", AUTHENTICATOR),
    ("auth", "TestGetsSelfAttributesError", AUTHENTICATOR),
    ("auth", "TestSloppySANCertificates", AUTHORITY),
    ("auth", "TestAuthnToKAS", AUTHORITY),
    ("integration", "TestInvalidObjectMetaInStorage", ETCD),
    ("integration", "TestCustomResourceDefaultingOfMetaFields", ETCD),
    ("integration", "TestEtcdStorage", ETCD),
    ("conversion", "TestWebhookConversion_WhitespaceCABundleEtcdBypass", ETCD),
    ("conversion", "TestWebhookConverterWithWatchCache/nontrivial-converter-v1/check-5", ETCD),
    ("conversion", "TestWebhookConverterWithWatchCache/nontrivial-converter-v1/check-6", ETCD),
    ("conversion", "TestWebhookConverterWithWatchCache/nontrivial-converter-v1beta1/check-5", ETCD),
    ("conversion", "TestWebhookConverterWithWatchCache/nontrivial-converter-v1beta1/check-6", ETCD),
    ("conversion", "TestWebhookConverterWithoutWatchCache/nontrivial-converter-v1/check-5", ETCD),
    ("conversion", "TestWebhookConverterWithoutWatchCache/nontrivial-converter-v1/check-6", ETCD),
    ("conversion", "TestWebhookConverterWithoutWatchCache/nontrivial-converter-v1beta1/check-5", ETCD),
    ("conversion", "TestWebhookConverterWithoutWatchCache/nontrivial-converter-v1beta1/check-6", ETCD),
    ("apiserver", "TestDefaultStorageEncoding", ETCD),
    ("apiserver", "TestEmulatedStorageVersion", ETCD),
    ("apiserver", "TestMinCompatibilityStorageVersion", ETCD),
    ("apiserver", "TestListOptions", ETCD),
    ("apiserver", "TestHealthHandler", ETCD),
    ("apiserver", "TestWatchCacheUpdatedByEtcd", ETCD),
    (
        "apiserver",
        "TestCustomResourceValidators/CRD_writes_MUST_fail_for_a_non-structural_schema_containing_x-kubernetes-validations",
        OLD_CRD,
    ),
    (
        "apiserver",
        "TestHealthHandlerLoopbackServingCertificate",
        "about a certificate with which kube-apiserver calls itself",
    ),
    (
        "admissionwebhook",
        "TestWebhookLoadBalance/10_connections_when_using_http1",
        "puts its own resolver of Services into the server's process",
    ),
    ("apply", "TestApplyCRDNoSchema", OLD_CRD),
    ("apply", "TestApplyCRDUnhandledSchema", OLD_CRD),
    ("apply", "TestUpdateStatusWithOldVersion", OLD_CRD),
    ("admissionwebhook", "TestWebhookAdmissionWithWatchCache", OLD_CRD),
    ("admissionwebhook", "TestWebhookAdmissionWithoutWatchCache", OLD_CRD),
];

const AUTHORIZER: &str = "brings its own authorizer into the server's process";
const AUTHENTICATOR: &str = "brings its own authenticator into the server's process";
const AUTHORITY: &str = "changes files of authorities that the server was started with";
const ETCD: &str = "looks into etcd";
const OLD_CRD: &str = "writes objects of removed versions into etcd";

/// Fail: end of the package's path, test, reason.
const FAIL: &[(&str, &str, &str)] = &[
    ("apply", "TestCreateVeryLargeObject", LARGE),
    ("apply", "TestUpdateVeryLargeObject", LARGE),
    ("apply", "TestPatchVeryLargeObject", LARGE),
    (
        "apiserver",
        "TestRequestObjectConvertibleToUnstructured",
        "broken JSON inside of protobuf is refused with a Status; upstream ends the stream without one",
    ),
    (
        "apiserver",
        "TestCustomResourceValidatorsWithSchemaConversion",
        "a schema with items below an object is read without them; upstream refuses every object of it",
    ),
    ("auth", "TestAuthModeAlwaysAllow", "wants another range of addresses for Services"),
    ("client", "TestClient", "the server says another version than the client was built from"),
];

const LARGE: &str = "objects may be larger than in etcd";

/// Returns why a test is left out.
pub(super) fn left_out(package: &str, test: &str) -> Option<&'static str> {
    find(LEFT_OUT, package, test)
}

/// Returns why a test is known to fail.
pub(super) fn fails(package: &str, test: &str) -> Option<&'static str> {
    find(FAIL, package, test)
}

/// Returns the cases of a test that are left out, as Go wants them: one expression for each level of names.
pub(super) fn cases_left_out(package: &str, test: &str) -> Option<String> {
    let cases: Vec<String> = LEFT_OUT
        .iter()
        .filter(|(end, _, _)| package.ends_with(end))
        .filter(|(_, name, _)| name.split_once('/').is_some_and(|(name, _)| name == test))
        .map(|(_, name, _)| name.split('/').map(|level| format!("^{level}$")).collect::<Vec<_>>().join("/"))
        .collect();
    (!cases.is_empty()).then(|| cases.join("|"))
}

fn find(list: &[(&str, &str, &'static str)], package: &str, test: &str) -> Option<&'static str> {
    list.iter().find(|(end, name, _)| *name == test && package.ends_with(end)).map(|(_, _, reason)| *reason)
}

#[test]
fn cases_are_left_out_level_by_level() {
    let skipped = cases_left_out("test/integration/apiserver", "TestCustomResourceValidators").unwrap();
    assert!(skipped.starts_with("^TestCustomResourceValidators$/^CRD_writes_"), "{skipped}");
    let skipped =
        cases_left_out("test/integration/conversion", "TestWebhookConverterWithWatchCache").unwrap();
    assert_eq!(skipped.split('|').count(), 4);
    assert_eq!(
        skipped.split('|').next(),
        Some("^TestWebhookConverterWithWatchCache$/^nontrivial-converter-v1$/^check-5$")
    );
    assert_eq!(cases_left_out("test/integration/apiserver", "TestPatch"), None);
}
