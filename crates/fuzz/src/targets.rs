//! The targets: what is tried, and what must hold.

mod answers;
mod cron;
mod foreign;
mod queries;
mod scripts;

use std::sync::{Arc, LazyLock};

use apimachinery::depth::{self, MAX_DEPTH};
use apimachinery::gvk::Gvk;
use apimachinery::jsonpath;
use apimachinery::patch::{json as json_patch, merge, strategic};
use apimachinery::quantity::Quantity;
use apimachinery::selector::{self, LabelSelector};
use apimachinery::server_side_apply::FieldManager;
use apimachinery::{json, yaml};
use apiserver::auth::User;
use apiserver::auth::pki::{self, Pair, Pki};
use apiserver::auth::x509::Judge;
use apiserver::http::{Query, RequestInfo, onward, request};
use serde_json::{Value, json};

use crate::Target;

const JSON_WORDS: &[&str] = &["[", "{\"a\":", "null", "true", "\\u00e9", "\\ud800", "\"", ",", "1e9", "-0"];
const OBJECT_WORDS: &[&str] = &[
    "\"metadata\":{\"name\":\"a\"}",
    "\"spec\":{",
    "\"containers\":[{\"name\":\"a\"}]",
    "\"$patch\":\"delete\"",
    "\"$patch\":\"replace\"",
    "\"$retainKeys\":[\"a\"]",
    "\"$setElementOrder/containers\":[{\"name\":\"a\"}]",
    "\"$deleteFromPrimitiveList/finalizers\":[\"a\"]",
    "\"managedFields\":[{\"manager\":\"m\",\"fieldsV1\":{\"f:a\":{}}}]",
    "null",
    "{\"a\":",
    "[",
];

/// Everything that is tried.
pub static TARGETS: &[Target] = &[
    Target {
        name: "json",
        about: "what is read keeps to the depth, and printed and read again it is the same",
        words: JSON_WORDS,
        run: read_json,
    },
    Target {
        name: "yaml",
        about: "what is read keeps to the depth and does not unfold beyond its budget",
        words: &[
            "&a ", "*a", "<<: *a", "- ", ": ", "\n", "[*a,*a]", "!!str ", "|\n", "? ", "{", "---\n", "  ",
        ],
        run: read_yaml,
    },
    Target {
        name: "protobuf",
        about: "what is decoded keeps to the depth, and encoded and decoded again it is the same",
        words: &["k8s\0", "\n\x02v1", "\x12\x03Pod", "\n", "\x12", "\x1a", "\x08\x01", "\u{7f}"],
        run: read_protobuf,
    },
    Target {
        name: "json-patch",
        about: "a patch keeps to the depth and adds no more than its own size and the limit of copies",
        words: &[
            "{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/a/-\"},",
            "{\"op\":\"add\",\"path\":\"/a/0\",\"value\":[]},",
            "{\"op\":\"move\",\"from\":\"/a\",\"path\":\"/b\"},",
            "{\"op\":\"remove\",\"path\":\"/a\"},",
            "{\"op\":\"test\",\"path\":\"/a\",\"value\":null},",
            "/0",
            "/-",
            "~1",
            "[",
        ],
        run: patch_json,
    },
    Target {
        name: "merge-patch",
        about: "a merge keeps to the depth, twice is once, and the difference of the two states leads there",
        words: OBJECT_WORDS,
        run: patch_merge,
    },
    Target {
        name: "strategic-patch",
        about: "a strategic merge keeps to the depth",
        words: OBJECT_WORDS,
        run: patch_strategic,
    },
    Target {
        name: "apply",
        about: "an applied configuration keeps to the depth, and applying it again changes nothing",
        words: OBJECT_WORDS,
        run: apply,
    },
    Target {
        name: "shape",
        about: "the canonical form of an object is its own canonical form",
        words: OBJECT_WORDS,
        run: canonicalise,
    },
    Target {
        name: "overrides",
        about: "an override keeps to the depth, and a document inside of a field stays readable",
        words: &[
            "\"path\":\"/a/0\"",
            "\"value\":[[]]",
            "\"subPath\":\"/a\"",
            "\"operator\":\"add\"",
            "[",
            "&a ",
            "*a",
            "\\n",
        ],
        run: override_object,
    },
    Target {
        name: "cel",
        about: "an expression costs no more than it may, and what it makes keeps to the depth",
        words: &[
            "object",
            ".map(x, x)",
            ".all(x, x)",
            "[1,2]",
            "{'a': 1}",
            "size(",
            "Object{a: 1}",
            " + ",
            " ? ",
            " : ",
            ".matches('a*')",
            "has(object.a)",
            "b'a'",
            "dyn(",
            "'a'.format([1])",
        ],
        run: evaluate,
    },
    Target {
        name: "selectors",
        about: "a selector that is printed and read again is the same",
        words: &[" in (", " notin (", "!", "=", "==", "!=", ",", ")", ">", "<", "a/b", "\\,", "\\="],
        run: select,
    },
    Target {
        name: "jsonpath",
        about: "a path finds only what is there",
        words: &[
            "{",
            "}",
            "[*]",
            "[?(@.a==1)]",
            "..",
            "['a']",
            "[0:1:1]",
            "[-1]",
            "@",
            "$",
            "{range .a[*]}",
            "{end}",
        ],
        run: find_path,
    },
    Target {
        name: "quantity",
        about: "the canonical text of a quantity is its own canonical text",
        words: &["Ki", "Mi", "Gi", "Ei", "m", "n", "e", "E", "k", ".", "+", "-", "1", "0"],
        run: read_quantity,
    },
    Target {
        name: "certificates",
        about: "a certificate that the authority did not sign names nobody; a broken request is an error",
        words: &[
            "\x30\u{82}",
            "\x06\x03U\x04\n",
            "\x0c",
            "\x1e",
            "-----BEGIN CERTIFICATE REQUEST-----\n",
            "-----END CERTIFICATE REQUEST-----\n",
        ],
        run: read_certificate,
    },
    Target {
        name: "paths",
        about: "a path of a resource names a resource, with and without a slash at the end",
        words: &[
            "/api/v1",
            "/apis/",
            "/namespaces/",
            "/proxy/",
            "/clusters/",
            "%2F",
            "%2e%2e",
            "..",
            "//",
            "watch/",
            "?",
            "%",
            "status",
        ],
        run: read_path,
    },
    Target {
        name: "lua",
        about: "a script is refused or ends within its bounds, and what it makes keeps to the depth",
        words: &[
            "function f(a, ...) ",
            " end ",
            "local t = {} ",
            "return ",
            "while true do ",
            "for i = 1, 9 do ",
            "for k, v in pairs(o) do ",
            "if a then ",
            "goto x ",
            "::x::",
            "o.status",
            "[[",
            "--[==[",
            "'\\x",
            "0x",
            "string.find('aaa', 'a-b')",
            "string.format('%5.2f', 1)",
            "kube.accuratePodRequirements(o)",
            "pcall(error, {})",
            "..",
            "#t",
            "{1, a = 2, [3] = 4}",
        ],
        run: scripts::run,
    },
    Target {
        name: "lua-values",
        about: "a value that has been through Lua once stays the same the second time",
        words: &[
            "{}",
            "[]",
            "[null,1]",
            "9007199254740993",
            "1e300",
            "-0.0",
            "{\"1\":1}",
            "\"\\u0000\"",
            "null",
            "[",
        ],
        run: scripts::convert,
    },
    Target {
        name: "onward",
        about: "what is handed on to a member is what was authorised, in the caller's name and nobody else's",
        words: &[
            "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/",
            "%2e%2e/",
            "..%2f",
            "./",
            "//",
            "%5c..",
            "%70roxy",
            "watch/",
            "namespaces/a/",
            "?x=/../",
            "\nimpersonate-user: admin",
            "\nauthorization: Bearer a",
            "\nx-remote-user: admin",
            "\nupgrade: websocket",
            "\nusername=",
            "\ngroup=",
            "system:masters",
            " ",
            "ö",
        ],
        run: hand_on,
    },
    Target {
        name: "kubeconfig",
        about: "a kubeconfig that we write names what it was asked to name",
        words: &["'", "\"", ": ", "#", "- ", "|", "\n", "!!", "&a", "*a", "{", "null", "~", "0x1", "yes"],
        run: write_kubeconfig,
    },
    Target {
        name: "foreign-kubeconfig",
        about: "a kubeconfig of another cluster runs no program, reads no file and speaks to nobody in the clear",
        words: &[
            "current-context: a\n",
            "{name: a, user: {token: t}}",
            "exec: {command: sh}",
            "auth-provider: {name: gcp}",
            "tokenFile: /t",
            "client-key: /k",
            "certificate-authority: /c",
            "certificate-authority-data: Y2E=",
            "proxy-url: http://p",
            "insecure-skip-tls-verify: true",
            "as: root",
            "<<: *a",
            "&a ",
            "https://",
            "http://",
            "a@",
            "null",
            ": ",
            "- ",
            "\n",
            "  ",
        ],
        run: foreign::read,
    },
    Target {
        name: "cron",
        about: "a schedule comes later than now, at the first moment that it means, and is found in few steps",
        words: &[
            "*",
            "?",
            ",",
            "-",
            "/",
            "*/5",
            "1-5",
            "0",
            "59",
            "23",
            "31",
            "feb",
            "MON",
            "@every ",
            "90m",
            "@daily",
            "TZ=Europe/Berlin ",
            "CRON_TZ=",
            "America/Sao_Paulo",
            "Pacific/Apia",
            "Local",
            "\n",
            " ",
            "L",
            "#",
            "1774746000",
            "-62135596800",
            "253402207200",
        ],
        run: cron::run,
    },
    Target {
        name: "queries",
        about: "a query finds nothing that may not be seen, and its pages make up the whole; tokens are read as printed",
        words: &[
            "kind:pod",
            "cluster:eu-*",
            "ns:shop",
            "status!=Running",
            "image:*:v1",
            "label:app=web",
            "node:n1",
            "age<4m",
            "age>=1h",
            "p1",
            "\"",
            "*",
            "?",
            "!=",
            ":",
            ",",
            " ",
            "\n",
            "name",
            "-age",
            "status",
            "ü",
            "eyJtMSI6IjcifQ",
            "eyJtMSI6IjciLCJtMSMiOiIxMDUifQ",
        ],
        run: queries::ask,
    },
    Target {
        name: "answers",
        about: "a webhook's answer changes what it may change and nothing else, and what is told of it is short",
        words: &[
            "\"response\":{",
            "\"uid\":\"u\"",
            "\"allowed\":true",
            "\"successful\":true",
            "\"patchType\":\"JSONPatch\"",
            "\"patch\":\"W10=\"",
            "\"patch\":\"W3sib3AiOiJyZXBsYWNlIiwicGF0aCI6Ii9zcGVjL3JlcGxpY2FzIiwidmFsdWUiOjd9XQ==\"",
            "\"status\":{\"message\":\"a\",\"code\":1}",
            "\"convertedObjects\":[",
            "\"metadata\":{\"name\":\"w\"",
            "\"rawStatus\":{",
            "\"replicas\":-1",
            "\"dependencies\":[{",
            "\"components\":[{",
            "[",
            "{\"a\":",
            "null",
            ",",
        ],
        run: answers::read,
    },
];

fn shallow(value: &Value) {
    assert!(depth::check(value).is_ok(), "{} levels", depth::depth(value));
}

fn outcome<T, E: std::fmt::Display>(result: Result<T, E>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

fn read_json(input: &[u8]) -> String {
    let document = match json::read(input) {
        Ok(document) => document,
        Err(error) => return error.to_string(),
    };
    shallow(&document.value);
    for printed in [json::write(&document.value), json::write_pretty(&document.value)] {
        let again = json::read_value(printed.as_bytes()).expect("what was printed can be read");
        assert_eq!(again, document.value, "{printed}");
    }
    // What may be stored must be readable by everybody.
    let stored: Value = serde_json::from_str(&document.value.to_string()).expect("serde_json reads it");
    assert_eq!(stored, document.value);
    let mut complaints = document.complaints();
    json::sort_complaints(input, &mut complaints);
    format!("fine, {} complaints", complaints.len())
}

fn read_yaml(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let all = yaml::read_all(text);
    let document = match yaml::read(text) {
        Ok(document) => document,
        Err(error) => return error.to_string(),
    };
    shallow(&document.value);
    let size = document.value.to_string().len();
    // Escapes make six bytes of one.
    assert!(size <= 6 * (text.len() + yaml::MAX_ALIASED_BYTES), "{size} bytes of {}", text.len());
    format!("fine, {} duplicates, {}", document.duplicates.len(), all.is_ok())
}

fn read_protobuf(input: &[u8]) -> String {
    let (gvk, value) = match native::proto::decode(input) {
        Ok(decoded) => decoded,
        Err(error) => return error.to_string(),
    };
    shallow(&value);
    match native::proto::encode(&gvk, &value) {
        Ok(encoded) => {
            let (again, second) = native::proto::decode(&encoded).expect("what was encoded can be decoded");
            assert_eq!((again, second), (gvk.clone(), value), "{gvk}");
            format!("a {}", gvk.kind)
        }
        Err(error) => format!("not encoded: {error}"),
    }
}

/// Reads an input that holds two documents: `[one, other]`.
fn two(input: &[u8]) -> Result<(Value, Value), String> {
    match json::read_value(input).map_err(|error| error.to_string())? {
        Value::Array(items) => {
            let [one, other]: [Value; 2] = items.try_into().map_err(|_| "not two".to_owned())?;
            Ok((one, other))
        }
        _ => Err("not a list".to_owned()),
    }
}

fn patch_json(input: &[u8]) -> String {
    let (target, patch) = match two(input) {
        Ok(two) => two,
        Err(why) => return why,
    };
    let patched = json_patch::apply(&target, &patch);
    if let Ok(patched) = &patched {
        shallow(patched);
        let (before, after) = (target.to_string().len() + patch.to_string().len(), patched.to_string().len());
        // Each copy adds a comma or a name besides its value.
        assert!(after <= 2 * before + json_patch::MAX_COPIED_BYTES, "{before} became {after}");
    }
    if let Ok(operations) = json_patch::decode(&patch) {
        let strict = json_patch::run(&target, &operations, json_patch::Dialect::Overrider);
        if let (Ok(strict), Ok(lenient)) = (&strict, &patched) {
            assert_eq!(
                strict, lenient,
                "where both dialects agree that it applies, they agree on the result"
            );
        }
    }
    outcome(patched)
}

fn patch_merge(input: &[u8]) -> String {
    let (mut target, patch) = match two(input) {
        Ok(two) => two,
        Err(why) => return why,
    };
    let before = target.clone();
    merge::apply(&mut target, patch.clone());
    shallow(&target);
    let mut twice = target.clone();
    merge::apply(&mut twice, patch);
    assert_eq!(twice, target);
    if !has_null(&target) && target.is_object() && before.is_object() {
        let mut led = before.clone();
        if let Some(difference) = merge::diff(&before, &target) {
            merge::apply(&mut led, difference);
        }
        assert_eq!(led, target);
    }
    "merged".to_owned()
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(entries) => entries.values().any(has_null),
        _ => false,
    }
}

fn deployment() -> Gvk {
    Gvk::new("apps", "v1", "Deployment")
}

fn patch_strategic(input: &[u8]) -> String {
    let (target, patch) = match two(input) {
        Ok((Value::Object(target), Value::Object(patch))) => (target, patch),
        Ok(_) => return "not objects".to_owned(),
        Err(why) => return why,
    };
    let schema = native::merge::schema(&deployment()).expect("a Deployment has a schema");
    let merged = strategic::apply(&target, &patch, &schema);
    if let Ok(merged) = &merged {
        shallow(&Value::Object(merged.clone()));
    }
    outcome(merged)
}

fn canonicalise(input: &[u8]) -> String {
    let mut object = match json::read_value(input) {
        Ok(object) => object,
        Err(error) => return error.to_string(),
    };
    let gvk = deployment();
    let first = native::shape::canonicalise(&gvk, &mut object);
    if first.is_ok() {
        // What is always printed may add two levels: a list with an empty object in it.
        assert!(depth::depth(&object) <= MAX_DEPTH + 2);
        let mut again = object.clone();
        let unknown = native::shape::canonicalise(&gvk, &mut again).expect("it is in canonical form");
        assert_eq!((again, unknown), (object, Vec::new()));
    }
    outcome(first)
}

fn apply(input: &[u8]) -> String {
    let (mut live, mut applied) = match two(input) {
        Ok(two) => two,
        Err(why) => return why,
    };
    let (gvk, reset) = (deployment(), Default::default());
    for object in [&mut live, &mut applied] {
        if !object.is_object() || native::shape::canonicalise(&gvk, object).is_err() {
            return "not a Deployment".to_owned();
        }
        object["apiVersion"] = json!("apps/v1");
        object["kind"] = json!("Deployment");
    }
    let types = native::merge::Versions { gvk: gvk.clone() };
    let fields = FieldManager { types: &types, gvk: &gvk, subresource: "", reset: &reset };
    let updated = fields.update(&types_empty(&gvk), live, "creator", "2026-01-01T00:00:00Z");
    let once = fields.apply(&updated, &applied, "applier", true, "2026-01-01T00:00:01Z");
    if let Ok(once) = &once {
        // The record of who owns what repeats the object four levels further down.
        assert!(depth::depth(once) <= MAX_DEPTH + 6, "{} levels", depth::depth(once));
        let twice = fields.apply(once, &applied, "applier", true, "2026-01-01T00:00:02Z");
        let twice = twice.expect("what was applied can be applied again");
        let twice = apimachinery::server_side_apply::keep_times_if_equal(once, twice);
        assert_eq!(&twice, once, "applying again changes something");
    }
    once.map_or_else(|error| error.to_string(), |_| "applied".to_owned())
}

fn types_empty(gvk: &Gvk) -> Value {
    use apimachinery::server_side_apply::Types;
    native::merge::Versions { gvk: gvk.clone() }.empty(gvk)
}

fn override_object(input: &[u8]) -> String {
    let (mut object, overriders) = match two(input) {
        Ok(two) => two,
        Err(why) => return why,
    };
    let overriders: api::policy::Overriders = match serde_json::from_value(overriders) {
        Ok(overriders) => overriders,
        Err(error) => return error.to_string(),
    };
    if !object.is_object() || object["metadata"].as_object().is_none() {
        return "not an object".to_owned();
    }
    let applied = propagation::overrides::apply_overriders(&mut object, &overriders);
    if applied.is_ok() {
        assert!(depth::depth(&object) <= MAX_DEPTH, "{} levels", depth::depth(&object));
        if overriders.plaintext.is_empty()
            && let [only] = overriders.field_overrider.as_slice()
            && !only.yaml.is_empty()
            && let Some(text) = object.pointer(&only.field_path).and_then(Value::as_str)
        {
            let read = yaml::read(text);
            assert!(read.is_ok(), "{:?} of {text:?}", read.err());
        }
    }
    outcome(applied)
}

fn evaluate(input: &[u8]) -> String {
    let Ok(source) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let program = match cel::Program::compile_mutation(source, &["object"]) {
        Ok(program) => program,
        Err(error) => return error.report(source).chars().take(200).collect(),
    };
    let object = cel::from_json(&json!({"a": [1, 2, {"b": "x"}], "spec": {"replicas": 3, "name": "web"}}));
    let variables = cel::Variables::new().set("object", object);
    match program.run(&variables, 100_000).result {
        Ok(value) => match cel::to_json(&value) {
            Ok(document) => {
                shallow(&document);
                format!("a {}", value.type_name())
            }
            Err(error) => error,
        },
        Err(error) => error.to_string(),
    }
}

fn select(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let labels = LabelSelector::parse(text);
    if let Ok(selector) = &labels {
        let printed = selector.to_string();
        let again = LabelSelector::parse(&printed).expect("what was printed can be read");
        assert_eq!(again.to_string(), printed, "{text:?}");
        let known = [("a".to_owned(), "b".to_owned())];
        let known = std::collections::BTreeMap::from(known);
        assert_eq!(selector.matches(&known), again.matches(&known), "{text:?}");
    }
    let fields = selector::FieldSelector::parse(text);
    if let Ok(selector) = &fields {
        let printed = selector.to_string();
        let again = selector::FieldSelector::parse(&printed).expect("what was printed can be read");
        // As upstream the terms are sorted as they are written, and `==` is printed as `=`: the order may change.
        let sorted = |selector: &selector::FieldSelector| {
            let mut terms: Vec<String> = selector.terms().iter().map(|term| format!("{term:?}")).collect();
            terms.sort();
            terms
        };
        assert_eq!(sorted(&again), sorted(selector), "{text:?} became {printed:?}");
    }
    format!("{}; {}", outcome(labels), outcome(fields))
}

fn find_path(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let root = json!({"a": [{"a": 1, "b": "x"}, {"a": 2}, 3], "b": {"c": null, "d": [[1], [2]]}});
    if let Ok(template) = jsonpath::Template::parse(text)
        && let Ok(filled) = template.fill(&root, &jsonpath::Fuel::new(10_000))
    {
        assert!(filled.len() <= 10_000, "{} bytes", filled.len());
    }
    let path = match jsonpath::Path::parse(text) {
        Ok(path) => path,
        Err(error) => return error.to_string(),
    };
    let found = path.find(&root);
    assert_eq!(path.first(&root), found.first().copied());
    // Steps that name everything below may find a thing several times, but not without end.
    assert!(found.len() <= 100_000, "{} values", found.len());
    let printed: usize = found.iter().map(|value| jsonpath::print(value).len()).sum();
    format!("found {}", if printed > 0 { "something" } else { "nothing" })
}

fn read_quantity(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let canonical = Quantity::canonical(text);
    if let Ok(canonical) = &canonical {
        assert_eq!(Quantity::canonical(canonical).as_ref(), Ok(canonical), "{text:?}");
        let (parsed, again) = (Quantity::parse(text), Quantity::parse(canonical));
        assert_eq!(parsed.ok().map(|q| q.to_string()), again.ok().map(|q| q.to_string()), "{text:?}");
    }
    outcome(canonical)
}

fn read_certificate(input: &[u8]) -> String {
    static JUDGE: LazyLock<Judge> = LazyLock::new(|| {
        let pki = Pki::load_or_create(None, &["localhost".to_owned()]).expect("keys can be made");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Judge::new(&pki.ca.cert, &pki.front_proxy_ca.cert, &provider).expect("our authorities are fine")
    });
    let chain = [rustls::pki_types::CertificateDer::from(input.to_vec())];
    let verdict = JUDGE.judge(&chain);
    assert!(verdict.user.is_none() && !verdict.front_proxy, "somebody is trusted");
    let asked = apiserver::auth::certify::names_in(input);
    // No byte of it can be changed by chance and still be signed.
    let refused = apiserver::auth::signing_request::check(input).err();
    if let Ok(text) = std::str::from_utf8(input) {
        // Looked at on every start, whatever is in the file.
        let _ = pki::expiry(text);
    }
    match asked {
        Ok((name, groups)) => format!("{} of {} {refused:?}", name.is_empty(), groups.len().min(3)),
        Err(error) => format!("{error} {refused:?}"),
    }
}

fn read_path(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let query = Query::parse(Some(query));
    let info = RequestInfo::parse(&http::Method::GET, path, &query);
    if info.is_resource {
        assert!(["api", "apis"].contains(&info.prefix));
        assert!(["get", "list", "watch", "proxy"].contains(&info.verb), "{}", info.verb);
    }
    let again = RequestInfo::parse(&http::Method::GET, path, &query);
    assert_eq!(again, info);
    format!("{} {} {}", info.verb, info.is_resource, !info.subresource.is_empty())
}

/// The first line is a path and query; lines with `username=` and `group=` are the caller's identity, the others headers.
fn hand_on(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default();
    let (path, query) = first.split_once('?').unwrap_or((first, ""));
    let (mut user, mut given) = (User::default(), http::HeaderMap::new());
    for line in lines {
        if let Some(name) = line.strip_prefix("username=") {
            name.clone_into(&mut user.name);
        } else if let Some(group) = line.strip_prefix("group=") {
            user.groups.push(group.to_owned());
        } else if let Some((name, value)) = line.split_once(": ")
            && let Ok(name) = http::HeaderName::from_bytes(name.as_bytes())
            && let Ok(value) = http::HeaderValue::from_bytes(value.as_bytes())
        {
            given.append(name, value);
        }
    }
    let info = RequestInfo::parse(&http::Method::GET, path, &Query::parse(Some(query)));
    let target = onward::target(&info, query);
    if let Ok(target) = &target {
        // What the server has authorised is the subresource of one object without a namespace.
        assert_eq!((info.namespace.as_str(), info.subresource.as_str()), ("", "proxy"), "{path}");
        let asked = target.split('?').next().unwrap_or_default();
        assert!(asked.starts_with('/'), "{target}");
        let decoded = request::percent_decode(asked, false);
        assert!(!decoded.split(['/', '\\']).any(|part| matches!(part, "." | "..")), "{target}");
        // The server has seen the same rest.
        assert_eq!(decoded.trim_matches('/'), info.rest.trim_matches('/'), "{path}");
        assert!(target.ends_with(query), "{target}");
    }
    let headers = onward::headers(&given, &user, true);
    if let Ok(headers) = &headers {
        let values = |name: &str| -> Vec<&[u8]> {
            headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
        };
        assert_eq!(values("impersonate-user"), [user.name.as_bytes()]);
        let groups: Vec<&[u8]> = user
            .groups
            .iter()
            .filter(|group| !matches!(group.as_str(), "system:authenticated" | "system:unauthenticated"))
            .map(|group| group.as_bytes())
            .collect();
        assert_eq!(values("impersonate-group"), groups);
        let foreign = |name: &str| {
            let ours = matches!(name, "impersonate-user" | "impersonate-group");
            name.starts_with("x-remote-")
                || (name.starts_with("impersonate-") && !ours)
                || name == "authorization"
        };
        assert!(!headers.keys().any(|name| foreign(name.as_str())), "{headers:?}");
    }
    format!(
        "{:?} {:?}",
        target.map_err(|status| status.code).is_ok(),
        headers.map_err(|status| status.code).is_ok()
    )
}

fn write_kubeconfig(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let (server, context) = text.split_once('\n').unwrap_or((text, "a"));
    let pair = Pair { cert: "cert".to_owned(), key: "key".to_owned() };
    let written = pki::kubeconfig(server, context, "ca", &pair);
    // As kubectl reads it, and as our own commands do.
    let ours = yaml::read(&written).expect("ours is readable").value;
    assert_eq!(ours["current-context"], context, "{written}");
    assert_eq!(ours["clusters"][0]["cluster"]["server"], server, "{written}");
    match kube::config::Kubeconfig::from_yaml(&written) {
        Ok(read) => {
            assert_eq!(read.current_context.as_deref(), Some(context), "{written}");
            "readable".to_owned()
        }
        Err(error) => panic!("{error}: {written}"),
    }
}
