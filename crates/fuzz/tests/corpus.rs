//! Every target has a corpus, and holds its properties on it.

use fuzz::TARGETS;

#[test]
fn every_corpus_holds() {
    for target in TARGETS {
        let corpus = target.corpus().unwrap_or_default();
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        for input in corpus {
            (target.run)(&input);
        }
    }
}

#[test]
fn every_corpus_belongs_to_a_target() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in folder.read_dir().expect("the corpus") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        assert!(fuzz::find(&name).is_some(), "there is no target called {name}");
    }
}

#[test]
fn names_of_targets_are_unique() {
    let names: std::collections::BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), TARGETS.len());
}
