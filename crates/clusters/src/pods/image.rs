//! The images of real pods: one layer of shell tools and our own program, one image per name that Karmada's suite uses, and images of
//! single programs.
//!
//! Pure: from the bytes of programs to the blobs and manifests of the OCI image format.

use std::collections::{BTreeMap, BTreeSet};

use hyper::body::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Image names, whatever the tag, and what each runs unless told otherwise.
const IMAGES: [(&str, &str); 5] = [
    ("pause", "/pause"),
    ("nginx", "/usr/sbin/nginx"),
    ("busybox", "sh"),
    ("alpine", "/bin/sh"),
    ("perl", "perl"),
];

pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// All images, by what a registry is asked for.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Registry and name of the image, as in `docker.io/library/nginx`, to its manifest's digest.
    pub(super) names: BTreeMap<String, String>,
    pub(super) blobs: BTreeMap<String, Bytes>,
}

/// A file of an image.
#[derive(Debug)]
pub(super) struct File {
    /// From the root on, with a slash in front.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

impl Images {
    /// Makes the images of `busybox`, whose tools are called `tools`, and our own program.
    pub(super) fn new(busybox: &[u8], tools: &[&str], program: &[u8]) -> Self {
        let mut images = Self::default();
        let layer = images.add(layer(busybox, tools, program));
        for (name, command) in IMAGES {
            let manifest = images.describe(&layer, command);
            for place in ["docker.io/library", "docker.io", "registry.k8s.io"] {
                images.names.insert(format!("{place}/{name}"), manifest.clone());
            }
        }
        images
    }

    /// Adds the image `name` of a program, the first of `files`, and of what else it needs. The program can also be called by the last
    /// part of the image's name, as in `/bin/karmada-agent`.
    pub(super) fn add_program(&mut self, name: &str, files: &[File]) {
        let Some(program) = files.first() else { return };
        let layer = self.add(program_layer(name, files));
        let manifest = self.describe(&layer, &program.path);
        self.names.insert(name.to_string(), manifest);
    }

    /// Adds what says that an image has this one layer and runs `command`; returns the digest of its manifest.
    fn describe(&mut self, (layer, layer_size): &(String, usize), command: &str) -> String {
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": [command]},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        });
        let (config, config_size) = self.add(config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": layer_size}],
        });
        self.add(manifest.to_string().into_bytes()).0
    }

    fn add(&mut self, bytes: Vec<u8>) -> (String, usize) {
        let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let (digest, size) = (format!("sha256:{hash}"), bytes.len());
        self.blobs.insert(digest.clone(), bytes.into());
        (digest, size)
    }
}

fn program_layer(name: &str, files: &[File]) -> Vec<u8> {
    let mut tar = Tar::default();
    let mut folders = BTreeSet::from(["bin".to_string(), "etc".to_string()]);
    for file in files {
        let path = file.path.trim_start_matches('/');
        folders.extend(path.match_indices('/').map(|(end, _)| path[..end].to_string()));
    }
    // Sorted, so outer folders come before inner ones.
    for folder in &folders {
        tar.folder(folder, 0o755);
    }
    tar.folder("tmp", 0o1777);
    for file in files {
        tar.file(file.path.trim_start_matches('/'), 0o755, &file.content);
    }
    let called = format!("bin/{}", name.rsplit('/').next().unwrap_or(name));
    if files.iter().all(|file| file.path.trim_start_matches('/') != called) {
        tar.link(&called, &files[0].path);
    }
    tar.file("etc/passwd", 0o644, PASSWD);
    tar.finish()
}

fn layer(busybox: &[u8], tools: &[&str], program: &[u8]) -> Vec<u8> {
    let mut tar = Tar::default();
    for folder in ["bin", "etc", "root", "usr", "usr/bin", "usr/sbin", "var", "var/log"] {
        tar.folder(folder, 0o755);
    }
    tar.folder("tmp", 0o1777);
    tar.file("bin/pod-program", 0o755, program);
    tar.file("bin/busybox", 0o755, &without_own_network_tools(busybox));
    for tool in tools.iter().filter(|tool| !OURS.contains(tool) && **tool != "busybox") {
        tar.link(&format!("bin/{tool}"), "busybox");
    }
    for path in
        OURS.map(|tool| format!("bin/{tool}")).iter().map(String::as_str).chain(["pause", "usr/sbin/nginx"])
    {
        tar.link(path, "/bin/pod-program");
    }
    tar.link("usr/bin/env", "/bin/busybox");
    // Karmada's suite runs perl for one thing only: to print digits of pi and end well.
    tar.file("usr/bin/perl", 0o755, b"#!/bin/sh\necho 3.14159265358979\n");
    tar.file("etc/passwd", 0o644, PASSWD);
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    tar.finish()
}

const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";

/// Tools of which ours can more than busybox'.
const OURS: [&str; 3] = ["nc", "wget", "curl"];

/// Its shell runs its own tools before any on the path, so those that ours replace get names that nobody calls. The table of
/// names stays sorted.
fn without_own_network_tools(busybox: &[u8]) -> Vec<u8> {
    let mut bytes = busybox.to_vec();
    for (name, other) in [(b"\0nc\0".as_slice(), b"\0nd\0".as_slice()), (b"\0wget\0", b"\0wgeu\0")] {
        let mut places = bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name);
        if let (Some((place, _)), None) = (places.next(), places.next()) {
            bytes[place..place + name.len()].copy_from_slice(other);
        }
    }
    bytes
}

/// Writes the old, simple kind of tar: names below 100 bytes, no owners, no times.
#[derive(Default)]
struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    fn folder(&mut self, name: &str, mode: u32) {
        self.entry(name, mode, b'5', "", &[]);
    }

    fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, mode, b'0', "", content);
    }

    fn link(&mut self, name: &str, to: &str) {
        self.entry(name, 0o777, b'2', to, &[]);
    }

    fn entry(&mut self, name: &str, mode: u32, kind: u8, link: &str, content: &[u8]) {
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", content.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        "); // the sum counts its own field as blanks
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(layer: &[u8]) -> String {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("layer.tar");
        std::fs::write(&path, layer).expect("write");
        let output = std::process::Command::new("tar").arg("-tvf").arg(&path).output().expect("tar runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn tar_itself_reads_the_layer() {
        let listed = listed(&layer(b"busybox", &["sh", "ls", "nc"], b"program"));
        assert!(listed.contains("bin/ls -> busybox"), "{listed}");
        assert!(listed.contains("bin/nc -> /bin/pod-program"), "{listed}");
        assert!(listed.contains("drwxrwxrwt"), "{listed}");
    }

    #[test]
    fn a_program_is_there_with_what_it_needs_and_under_the_name_of_its_image() {
        let file = |path: &str| File { path: path.to_string(), content: b"x".to_vec() };
        let files = [file("/usr/bin/karmada"), file("/lib/x86_64-linux-gnu/libc.so.6")];
        let listed = listed(&program_layer("docker.io/karmada/karmada-agent", &files));
        for line in ["usr/bin/karmada\n", "lib/x86_64-linux-gnu/libc.so.6\n", "lib/x86_64-linux-gnu\n"] {
            assert!(listed.contains(line), "{listed}");
        }
        assert!(listed.contains("bin/karmada-agent -> /usr/bin/karmada"), "{listed}");
        let same = program_layer("ghcr.io/karmada-rs/karmada", &[file("/bin/karmada")]);
        assert!(!self::listed(&same).contains("->"), "a link to itself");
    }

    #[test]
    fn every_name_leads_to_a_manifest_whose_blobs_are_there() {
        let mut images = Images::new(b"busybox", &["sh"], b"program");
        images.add_program("a/b/c", &[File { path: "/bin/c".to_string(), content: Vec::new() }]);
        assert!(images.names.contains_key("a/b/c"));
        for digest in images.names.values() {
            let manifest: serde_json::Value = serde_json::from_slice(&images.blobs[digest]).expect("JSON");
            for part in [&manifest["config"], &manifest["layers"][0]] {
                let blob = &images.blobs[part["digest"].as_str().expect("a digest")];
                assert_eq!(part["size"], blob.len());
            }
        }
    }

    #[test]
    fn the_shell_does_not_know_the_tools_that_ours_replace() {
        let changed = without_own_network_tools(b"\0ls\0nc\0sh\0wget\0who\0");
        assert_eq!(changed, b"\0ls\0nd\0sh\0wgeu\0who\0");
    }
}
