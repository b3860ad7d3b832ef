//! Cases as files: what is written to the server, in which order.
//!
//! A file has a `base` object, objects that exist `before`, and `cases`. A case is the base with a merge patch `with`, or
//! an `object` of its own; its name is the case's unless it has one. Then, if given, `status` is written, and `update` (a
//! merge patch) is sent as a whole object, or the object is deleted (`delete: true`). `look` names a quota whose usage is
//! part of the outcome. `differs` says why the original answers otherwise, and in which fields of the outcome (`at`): in these, and in
//! no others.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) before: Vec<Value>,
    pub(crate) cases: Vec<Case>,
}

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) object: Value,
    pub(crate) status: Option<Value>,
    pub(crate) update: Option<Value>,
    pub(crate) delete: bool,
    pub(crate) look: Option<String>,
    pub(crate) differs: Option<Differs>,
}

/// Where the original answers otherwise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Differs {
    pub(crate) why: String,
    /// JSON pointers into the outcome.
    pub(crate) at: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    base: Value,
    #[serde(default)]
    before: Vec<Value>,
    cases: BTreeMap<String, WrittenCase>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WrittenCase {
    object: Option<Value>,
    with: Option<Value>,
    status: Option<Value>,
    update: Option<Value>,
    delete: bool,
    look: Option<String>,
    differs: Option<Differs>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/admission")
}

pub(crate) fn read_all() -> Vec<File> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the folder of the cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    paths.sort();
    paths.into_iter().map(read).collect()
}

fn read(path: PathBuf) -> File {
    let text = std::fs::read_to_string(&path).expect("a readable file");
    let document =
        apimachinery::yaml::read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(document.duplicates, Vec::<String>::new(), "{}", path.display());
    let written: Written =
        serde_json::from_value(document.value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases = written
        .cases
        .into_iter()
        .map(|(name, case)| {
            let mut object = case.object.unwrap_or_else(|| written.base.clone());
            for field in ["apiVersion", "kind"] {
                if object.get(field).is_none() {
                    object[field] = written.base[field].clone();
                }
            }
            if let Some(patch) = case.with {
                apimachinery::patch::merge::apply(&mut object, patch);
            }
            if object["metadata"].get("name").is_none() && object["metadata"].get("generateName").is_none() {
                object["metadata"]["name"] = name.as_str().into();
            }
            Case {
                name,
                object,
                status: case.status,
                update: case.update,
                delete: case.delete,
                look: case.look,
                differs: case.differs,
            }
        })
        .collect();
    let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    File { name, before: written.before, cases }
}

pub(crate) fn read_expected(file: &str) -> BTreeMap<String, Value> {
    let path = folder().join(format!("expected/{file}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Cases that were not run keep their outcome.
pub(crate) fn write_expected(file: &str, outcomes: &BTreeMap<String, Value>) {
    let known: Vec<String> = read_all()
        .into_iter()
        .filter(|each| each.name == file)
        .flat_map(|each| each.cases)
        .map(|c| c.name)
        .collect();
    let mut all = read_expected(file);
    all.retain(|name, _| known.contains(name));
    all.extend(outcomes.clone());
    let text = serde_json::to_string_pretty(&all).expect("outcomes are JSON");
    std::fs::write(folder().join(format!("expected/{file}.json")), text + "\n").expect("a writable folder");
}
