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
    ("integration", "TestInvalidObjectMetaInStorage", ETCD),
    ("integration", "TestCustomResourceDefaultingOfMetaFields", ETCD),
    ("integration", "TestEtcdStorage", ETCD),
    ("apiserver", "TestDefaultStorageEncoding", ETCD),
    ("apiserver", "TestEmulatedStorageVersion", ETCD),
    ("apiserver", "TestMinCompatibilityStorageVersion", ETCD),
    ("apiserver", "TestListOptions", ETCD),
    ("apply", "TestApplyCRDNoSchema", OLD_CRD),
    ("apply", "TestApplyCRDUnhandledSchema", OLD_CRD),
    ("apply", "TestUpdateStatusWithOldVersion", OLD_CRD),
    ("admissionwebhook", "TestWebhookAdmissionWithWatchCache", OLD_CRD),
    ("admissionwebhook", "TestWebhookAdmissionWithoutWatchCache", OLD_CRD),
];

const AUTHORIZER: &str = "brings its own authorizer into the server's process";
const ETCD: &str = "looks into etcd";
const OLD_CRD: &str = "writes objects of removed versions into etcd";

/// Fail: end of the package's path, test, reason.
const FAIL: &[(&str, &str, &str)] = &[
    ("apply", "TestCreateOnApplyFailsWithUID", "an apply that creates may name a uid"),
    ("apply", "TestCreateVeryLargeObject", LARGE),
    ("apply", "TestUpdateVeryLargeObject", LARGE),
    ("apply", "TestPatchVeryLargeObject", LARGE),
    (
        "apply",
        "TestClearManagedFieldsWithUpdateEmptyList",
        "an empty list does not end the tracking of fields",
    ),
    ("apply", "TestApplyResetFields", "an applied status of a pod may not name the time of its deletion"),
    ("integration", "TestApplyScaleSubresource", "wants its own program to be called integration.test"),
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
    let cases: Vec<&str> = LEFT_OUT
        .iter()
        .filter(|(end, _, _)| package.ends_with(end))
        .filter_map(|(_, name, _)| name.split_once('/'))
        .filter(|(name, _)| *name == test)
        .map(|(_, case)| case)
        .collect();
    (!cases.is_empty()).then(|| format!("^{test}$/^({})$", cases.join("|")))
}

fn find(list: &[(&str, &str, &'static str)], package: &str, test: &str) -> Option<&'static str> {
    list.iter().find(|(end, name, _)| *name == test && package.ends_with(end)).map(|(_, _, reason)| *reason)
}
