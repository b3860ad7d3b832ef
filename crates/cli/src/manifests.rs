//! Objects in files: `-f FILE|DIRECTORY|URL|-`, YAML or JSON, several documents, lists unfolded.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use kube::{Client, Config};
use serde_json::Value;

/// Where objects are read from.
#[derive(Debug, Clone, Default, Args)]
pub struct Files {
    /// Filename, directory, or URL of files with objects; `-` is stdin.
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    pub filename: Vec<String>,
    /// Process the directory used in -f, --filename recursively.
    #[arg(short = 'R', long, requires = "filename")]
    pub recursive: bool,
    /// A directory with a kustomization; it has to be built by kubectl first.
    #[arg(short = 'k', long, value_name = "DIRECTORY", default_value = "", conflicts_with = "recursive")]
    pub kustomize: String,
}

/// An object and the file that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) source: String,
    pub(crate) object: Value,
}

impl Files {
    pub(crate) fn is_empty(&self) -> bool {
        self.filename.is_empty() && self.kustomize.is_empty()
    }

    /// kubectl already builds kustomizations; this program does not.
    fn refuse_kustomization(&self) -> anyhow::Result<()> {
        let folder = &self.kustomize;
        if folder.is_empty() {
            return Ok(());
        }
        if !self.filename.is_empty() {
            bail!("only one of -f or -k can be specified");
        }
        const NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
        if !NAMES.iter().any(|name| Path::new(folder).join(name).is_file()) {
            bail!(
                "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'",
                std::path::absolute(folder).unwrap_or_else(|_| folder.into()).display()
            );
        }
        bail!(
            "kustomizations are not built here; `kubectl kustomize {folder}` builds them, and -f - reads what it prints"
        )
    }

    /// Reads everything.
    pub(crate) async fn read(&self) -> anyhow::Result<Vec<Manifest>> {
        self.refuse_kustomization()?;
        let mut manifests = Vec::new();
        for name in &self.filename {
            if name == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
                parse("STDIN", &text, &mut manifests)?;
            } else if name.starts_with("http://") || name.starts_with("https://") {
                parse(name, &download(name).await?, &mut manifests)?;
            } else {
                for path in self.paths(Path::new(name))? {
                    let text = std::fs::read_to_string(&path)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    parse(&path.display().to_string(), &text, &mut manifests)?;
                }
            }
        }
        if manifests.is_empty() {
            bail!("no objects passed to apply");
        }
        Ok(manifests)
    }

    fn paths(&self, path: &Path) -> anyhow::Result<Vec<PathBuf>> {
        if !path.exists() {
            bail!("the path {} does not exist", apimachinery::go::quote(&path.display().to_string()));
        }
        if !path.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        let mut found = Vec::new();
        self.walk(path, &mut found)?;
        if found.is_empty() {
            bail!("error reading [{}]: recognized file extensions are [.json .yaml .yml]", path.display());
        }
        Ok(found)
    }

    fn walk(&self, directory: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        let entries =
            std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        let mut paths: Vec<PathBuf> =
            entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                if self.recursive {
                    self.walk(&path, found)?;
                }
            } else if path
                .extension()
                .is_some_and(|end| ["json", "yaml", "yml"].iter().any(|known| end == *known))
            {
                found.push(path);
            }
        }
        Ok(())
    }
}

pub(crate) async fn download(url: &str) -> anyhow::Result<String> {
    let address: http::Uri = url.parse().with_context(|| format!("{url} is not an address"))?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = address.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let root = url.strip_suffix(path.as_str()).unwrap_or(url);
    let client = Client::try_from(Config::new(root.parse()?)).context("cannot make a client")?;
    let request = http::Request::get(path).body(Vec::new())?;
    client
        .request_text(request)
        .await
        .with_context(|| format!("unable to read URL {}", apimachinery::go::quote(url)))
}

/// Reads the documents of a text; the items of lists count individually.
pub(crate) fn parse(source: &str, text: &str, manifests: &mut Vec<Manifest>) -> anyhow::Result<()> {
    let documents = apimachinery::yaml::read_all(text)
        .map_err(|error| anyhow::anyhow!("error parsing {source}: {error}"))?;
    for document in documents {
        unfold(source, document.value, manifests)?;
    }
    Ok(())
}

fn unfold(source: &str, object: Value, manifests: &mut Vec<Manifest>) -> anyhow::Result<()> {
    if object.is_null() {
        return Ok(());
    }
    let filled = |key: &str| object[key].as_str().is_some_and(|text| !text.is_empty());
    if !filled("kind") {
        bail!("unable to decode {}: Object 'Kind' is missing in '{object}'", apimachinery::go::quote(source));
    }
    if !filled("apiVersion") {
        bail!(
            "unable to decode {}: Object 'apiVersion' is missing in '{object}'",
            apimachinery::go::quote(source)
        );
    }
    let list =
        object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && object["items"].is_array();
    if list {
        for item in object["items"].as_array().into_iter().flatten() {
            unfold(source, item.clone(), manifests)?;
        }
        return Ok(());
    }
    manifests.push(Manifest { source: source.to_owned(), object });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_unfolded() {
        let mut manifests = Vec::new();
        let text = "---\n# nothing\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n- {apiVersion: v1, kind: Service}\n---\n{\"apiVersion\": \"v1\", \"kind\": \"Secret\"}\n";
        parse("f", text, &mut manifests).expect("good");
        let kinds: Vec<_> = manifests.iter().map(|m| m.object["kind"].as_str().unwrap_or("")).collect();
        assert_eq!(kinds, ["Pod", "Service", "Secret"]);
        let error = parse("f", "apiVersion: v1", &mut manifests).expect_err("no kind").to_string();
        assert!(error.starts_with("unable to decode \"f\": Object 'Kind' is missing"), "{error}");
    }

    #[test]
    fn a_kustomization_is_left_to_the_program_that_builds_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().display().to_string();
        let complaint = || {
            let files = Files { kustomize: path.clone(), ..Files::default() };
            files.refuse_kustomization().expect_err("refused").to_string()
        };
        assert!(complaint().starts_with("unable to find one of 'kustomization.yaml'"));
        std::fs::write(folder.path().join("kustomization.yaml"), "").expect("written");
        assert!(complaint().contains("kubectl kustomize"));
    }

    #[test]
    fn directories_give_their_manifests_and_their_own_only_on_request() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("deep")).expect("a folder");
        for name in ["b.yaml", "a.json", "c.txt", "deep/d.yml"] {
            std::fs::write(folder.path().join(name), "").expect("written");
        }
        let names = |recursive| -> Vec<String> {
            let files = Files { recursive, ..Files::default() };
            let paths = files.paths(folder.path()).expect("found");
            paths.iter().map(|p| p.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(false), ["a.json", "b.yaml"]);
        assert_eq!(names(true), ["a.json", "b.yaml", "d.yml"]);
        let missing = Files::default().paths(Path::new("/nowhere/x")).expect_err("missing").to_string();
        assert_eq!(missing, "the path \"/nowhere/x\" does not exist");
    }
}
