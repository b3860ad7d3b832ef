//! Objects as a stock server printed them: canonicalisation must leave every one of them alone.

use apimachinery::gvk::Gvk;
use native::{bootstrap, proto, shape};
use serde_json::Value;

fn served() -> Vec<Value> {
    let packed = include_bytes!("../testdata/served.json.zst");
    let bytes = zstd::stream::decode_all(&packed[..]).expect("test data is intact");
    let mut objects: Vec<Value> = serde_json::from_slice(&bytes).expect("test data is a list");
    let built_in = bootstrap::objects();
    objects.extend(built_in.cluster_roles);
    objects.extend(built_in.cluster_role_bindings);
    objects.extend(built_in.flow_schemas);
    objects
}

fn kind(object: &Value) -> Gvk {
    let text = |name: &str| object[name].as_str().expect("served objects name their type");
    Gvk::from_api_version(text("apiVersion"), text("kind"))
}

#[test]
fn what_a_stock_server_prints_is_canonical() {
    for object in served() {
        let mut ours = object.clone();
        let unknown = shape::canonicalise(&kind(&object), &mut ours).expect("decodes");
        assert_eq!(unknown, Vec::<String>::new(), "{object}");
        assert_eq!(ours, object);
    }
}

#[test]
fn what_a_stock_server_prints_survives_protobuf() {
    for object in served() {
        let gvk = kind(&object);
        let (back_kind, back) =
            proto::decode(&proto::encode(&gvk, &object).expect("encodes")).expect("decodes");
        assert_eq!(back_kind, gvk);
        assert_eq!(back, object);
    }
}
