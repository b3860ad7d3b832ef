//! The images of real pods: one layer of shell tools and our own program, and one image per name that Karmada's suite uses.
//!
//! Pure: from the bytes of two programs to the blobs and manifests of the OCI image format.

use std::collections::BTreeMap;

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
    /// Name of the image to its manifest's digest.
    pub(super) names: BTreeMap<&'static str, String>,
    pub(super) blobs: BTreeMap<String, Vec<u8>>,
}

impl Images {
    /// Makes the images of `busybox`, whose tools are called `tools`, and our own program.
    pub(super) fn new(busybox: &[u8], tools: &[&str], program: &[u8]) -> Self {
        let mut images = Self::default();
        let (layer, layer_size) = images.add(layer(busybox, tools, program));
        for (name, command) in IMAGES {
            let config = json!({
                "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
                "os": "linux",
                "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": [command]},
                "rootfs": {"type": "layers", "diff_ids": [layer]},
            });
            let (config, config_size) = images.add(config.to_string().into_bytes());
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
                "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": layer_size}],
            });
            let (manifest, _) = images.add(manifest.to_string().into_bytes());
            images.names.insert(name, manifest);
        }
        images
    }

    fn add(&mut self, bytes: Vec<u8>) -> (String, usize) {
        let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let (digest, size) = (format!("sha256:{hash}"), bytes.len());
        self.blobs.insert(digest.clone(), bytes);
        (digest, size)
    }
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
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n");
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    tar.finish()
}

/// Tools of which ours can more than busybox'.
const OURS: [&str; 3] = ["nc", "wget", "curl"];

/// Its shell runs its own tools before any on the path, so those that ours replace get names that nobody calls. The table of names stays sorted.
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

    #[test]
    fn tar_itself_reads_the_layer() {
        let bytes = layer(b"busybox", &["sh", "ls", "nc"], b"program");
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("layer.tar");
        std::fs::write(&path, bytes).expect("write");
        let output = std::process::Command::new("tar").arg("-tvf").arg(&path).output().expect("tar runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(listed.contains("bin/ls -> busybox"), "{listed}");
        assert!(listed.contains("bin/nc -> /bin/pod-program"), "{listed}");
        assert!(listed.contains("drwxrwxrwt"), "{listed}");
    }

    #[test]
    fn every_name_leads_to_a_manifest_whose_blobs_are_there() {
        let images = Images::new(b"busybox", &["sh"], b"program");
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
