//! The recorded documents of `/openapi/v3`, by path. Written by `gen/record.sh`.

pub(super) static DOCUMENTS: &[(&str, &[u8])] = &[
    (
        ".well-known/openid-configuration",
        include_bytes!("../../data/openapi-v3/.well-known__openid-configuration.json.zst"),
    ),
    ("api", include_bytes!("../../data/openapi-v3/api.json.zst")),
    ("api/v1", include_bytes!("../../data/openapi-v3/api__v1.json.zst")),
    ("apis", include_bytes!("../../data/openapi-v3/apis.json.zst")),
    (
        "apis/admissionregistration.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__admissionregistration.k8s.io.json.zst"),
    ),
    (
        "apis/admissionregistration.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__admissionregistration.k8s.io__v1.json.zst"),
    ),
    (
        "apis/apiextensions.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__apiextensions.k8s.io.json.zst"),
    ),
    (
        "apis/apiextensions.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__apiextensions.k8s.io__v1.json.zst"),
    ),
    (
        "apis/apiregistration.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__apiregistration.k8s.io.json.zst"),
    ),
    (
        "apis/apiregistration.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__apiregistration.k8s.io__v1.json.zst"),
    ),
    ("apis/apps", include_bytes!("../../data/openapi-v3/apis__apps.json.zst")),
    ("apis/apps/v1", include_bytes!("../../data/openapi-v3/apis__apps__v1.json.zst")),
    (
        "apis/authentication.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__authentication.k8s.io.json.zst"),
    ),
    (
        "apis/authentication.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__authentication.k8s.io__v1.json.zst"),
    ),
    (
        "apis/authorization.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__authorization.k8s.io.json.zst"),
    ),
    (
        "apis/authorization.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__authorization.k8s.io__v1.json.zst"),
    ),
    ("apis/autoscaling", include_bytes!("../../data/openapi-v3/apis__autoscaling.json.zst")),
    ("apis/autoscaling/v1", include_bytes!("../../data/openapi-v3/apis__autoscaling__v1.json.zst")),
    ("apis/autoscaling/v2", include_bytes!("../../data/openapi-v3/apis__autoscaling__v2.json.zst")),
    ("apis/batch", include_bytes!("../../data/openapi-v3/apis__batch.json.zst")),
    ("apis/batch/v1", include_bytes!("../../data/openapi-v3/apis__batch__v1.json.zst")),
    ("apis/certificates.k8s.io", include_bytes!("../../data/openapi-v3/apis__certificates.k8s.io.json.zst")),
    (
        "apis/certificates.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__certificates.k8s.io__v1.json.zst"),
    ),
    ("apis/coordination.k8s.io", include_bytes!("../../data/openapi-v3/apis__coordination.k8s.io.json.zst")),
    (
        "apis/coordination.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__coordination.k8s.io__v1.json.zst"),
    ),
    ("apis/discovery.k8s.io", include_bytes!("../../data/openapi-v3/apis__discovery.k8s.io.json.zst")),
    ("apis/discovery.k8s.io/v1", include_bytes!("../../data/openapi-v3/apis__discovery.k8s.io__v1.json.zst")),
    ("apis/events.k8s.io", include_bytes!("../../data/openapi-v3/apis__events.k8s.io.json.zst")),
    ("apis/events.k8s.io/v1", include_bytes!("../../data/openapi-v3/apis__events.k8s.io__v1.json.zst")),
    (
        "apis/flowcontrol.apiserver.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__flowcontrol.apiserver.k8s.io.json.zst"),
    ),
    (
        "apis/flowcontrol.apiserver.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__flowcontrol.apiserver.k8s.io__v1.json.zst"),
    ),
    ("apis/networking.k8s.io", include_bytes!("../../data/openapi-v3/apis__networking.k8s.io.json.zst")),
    (
        "apis/networking.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__networking.k8s.io__v1.json.zst"),
    ),
    ("apis/node.k8s.io", include_bytes!("../../data/openapi-v3/apis__node.k8s.io.json.zst")),
    ("apis/node.k8s.io/v1", include_bytes!("../../data/openapi-v3/apis__node.k8s.io__v1.json.zst")),
    ("apis/policy", include_bytes!("../../data/openapi-v3/apis__policy.json.zst")),
    ("apis/policy/v1", include_bytes!("../../data/openapi-v3/apis__policy__v1.json.zst")),
    (
        "apis/rbac.authorization.k8s.io",
        include_bytes!("../../data/openapi-v3/apis__rbac.authorization.k8s.io.json.zst"),
    ),
    (
        "apis/rbac.authorization.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__rbac.authorization.k8s.io__v1.json.zst"),
    ),
    ("apis/resource.k8s.io", include_bytes!("../../data/openapi-v3/apis__resource.k8s.io.json.zst")),
    ("apis/resource.k8s.io/v1", include_bytes!("../../data/openapi-v3/apis__resource.k8s.io__v1.json.zst")),
    ("apis/scheduling.k8s.io", include_bytes!("../../data/openapi-v3/apis__scheduling.k8s.io.json.zst")),
    (
        "apis/scheduling.k8s.io/v1",
        include_bytes!("../../data/openapi-v3/apis__scheduling.k8s.io__v1.json.zst"),
    ),
    ("apis/storage.k8s.io", include_bytes!("../../data/openapi-v3/apis__storage.k8s.io.json.zst")),
    ("apis/storage.k8s.io/v1", include_bytes!("../../data/openapi-v3/apis__storage.k8s.io__v1.json.zst")),
    ("openid/v1/jwks", include_bytes!("../../data/openapi-v3/openid__v1__jwks.json.zst")),
    ("version", include_bytes!("../../data/openapi-v3/version.json.zst")),
];
