//! The representation of an answer: media type, and either the object itself, a table or only its metadata.

use apimachinery::status::Status;

/// The wire formats of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// What the client wants to see of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    Object,
    /// `meta.k8s.io/v1` or `v1beta1`.
    Table {
        beta: bool,
    },
    /// In the same versions.
    Metadata {
        beta: bool,
    },
    MetadataList {
        beta: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub media: Media,
    pub shape: Shape,
    pub pretty: bool,
}

impl Accepted {
    pub const JSON: Self = Self { media: Media::Json, shape: Shape::Object, pretty: false };
}

/// The representations that an endpoint offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub protobuf: bool,
    pub yaml: bool,
    pub table: bool,
    pub metadata: bool,
    pub metadata_list: bool,
    /// Native routes have a stricter router: partial wildcards do not match there.
    pub native: bool,
}

/// Returns the best acceptable representation, or the 406 that kube-apiserver answers with.
pub fn negotiate(accept: Option<&str>, offer: Offer) -> Result<Accepted, Status> {
    let accept = accept.map(str::trim).unwrap_or("");
    if accept.is_empty() {
        return Ok(Accepted::JSON);
    }
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::parse).collect();
    // A stable sort: among equal weights the first one named wins.
    clauses.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    for clause in &clauses {
        if let Some(accepted) = clause.matches(offer) {
            return Ok(accepted);
        }
    }
    let mut types = vec![Media::Json.name()];
    if offer.yaml {
        types.push(Media::Yaml.name());
    }
    if offer.protobuf {
        types.push(Media::Protobuf.name());
    }
    let list = types.join(", ");
    if offer.native && clauses.iter().all(|clause| clause.media(offer).is_none()) {
        // Upstream's router for native kinds refuses these before any negotiation, in different words.
        let text = format!("406: Not Acceptable\n\nAvailable representations: {list}");
        return Err(Status::not_acceptable(text).with_details(Default::default()));
    }
    Err(Status::not_acceptable(format!("only the following media types are accepted: {list}")))
}

struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    weight: f32,
    /// The kind to convert to; empty if only its group or version is given, and then nothing is converted.
    convert: Option<&'a str>,
    group: &'a str,
    version: &'a str,
    pretty: bool,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut clause =
            Self { kind, subtype, weight: 1.0, convert: None, group: "", version: "", pretty: false };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match key.trim() {
                "q" => clause.weight = value.parse().unwrap_or(1.0),
                "as" => clause.convert = Some(value),
                "g" => {
                    clause.group = value;
                    clause.convert.get_or_insert("");
                }
                "v" => {
                    clause.version = value;
                    clause.convert.get_or_insert("");
                }
                "pretty" => clause.pretty = value == "1",
                _ => {}
            }
        }
        Some(clause)
    }

    fn media(&self, offer: Offer) -> Option<Media> {
        match (self.kind, self.subtype) {
            ("*", "*") | ("application", "json") => Some(Media::Json),
            ("application", "*") if !offer.native => Some(Media::Json),
            ("application", "yaml") if offer.yaml => Some(Media::Yaml),
            ("application", "vnd.kubernetes.protobuf") => Some(Media::Protobuf),
            _ => None,
        }
    }

    fn matches(&self, offer: Offer) -> Option<Accepted> {
        let media = self.media(offer)?;
        let shape = match self.convert {
            None => Shape::Object,
            Some(kind) => {
                let beta = self.beta()?;
                match kind {
                    "Table" if offer.table && media != Media::Protobuf => Shape::Table { beta },
                    "PartialObjectMetadata" if offer.metadata => Shape::Metadata { beta },
                    "PartialObjectMetadataList" if offer.metadata_list => Shape::MetadataList { beta },
                    _ => return None,
                }
            }
        };
        if media == Media::Protobuf
            && !(offer.protobuf || matches!(shape, Shape::Metadata { .. } | Shape::MetadataList { .. }))
        {
            return None;
        }
        Some(Accepted { media, shape, pretty: self.pretty })
    }

    /// Returns which version of `meta.k8s.io` is meant.
    fn beta(&self) -> Option<bool> {
        match (self.group, self.version) {
            ("meta.k8s.io", "v1") => Some(false),
            ("meta.k8s.io", "v1beta1") => Some(true),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offer =
        Offer { protobuf: true, yaml: true, table: true, metadata: true, metadata_list: false, native: true };

    fn check(accept: &str, media: Media, shape: Shape) {
        let accepted = negotiate(Some(accept), ALL).unwrap();
        assert_eq!((accepted.media, accepted.shape), (media, shape), "{accept}");
    }

    #[test]
    fn kubectl_gets_a_table() {
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            Media::Json,
            Shape::Table { beta: false },
        );
    }

    #[test]
    fn the_highest_weight_wins_then_the_first() {
        check("application/yaml;q=0.5, application/json;q=0.9", Media::Json, Shape::Object);
        check("application/vnd.kubernetes.protobuf,application/json", Media::Protobuf, Shape::Object);
        check("", Media::Json, Shape::Object);
    }

    #[test]
    fn a_custom_resource_has_no_protobuf_but_its_metadata_has() {
        let offer = Offer { protobuf: false, native: false, ..ALL };
        assert_eq!(negotiate(Some("application/vnd.kubernetes.protobuf"), offer).unwrap_err().code, 406);
        let accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(negotiate(Some(accept), offer).unwrap().shape, Shape::Metadata { beta: false });
        let accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1";
        assert_eq!(negotiate(Some(accept), offer).unwrap().shape, Shape::Metadata { beta: true });
    }

    #[test]
    fn a_conversion_without_a_kind_is_not_acceptable() {
        assert_eq!(negotiate(Some("application/json;g=meta.k8s.io;v=v1"), ALL).unwrap_err().code, 406);
    }

    #[test]
    fn partial_wildcards_do_not_count_on_native_routes() {
        assert_eq!(negotiate(Some("application/*"), ALL).unwrap_err().code, 406);
        assert!(negotiate(Some("application/*"), Offer { native: false, ..ALL }).is_ok());
    }
}
