//! Merges lists of several members into one: the texts of their items, one after the other.
//!
//! Only the list itself is parsed. Items remain the text that the member wrote, so that a list needs no more memory than it has
//! bytes, whatever a member puts into it: `[0,0,…]` as values would take twenty times as much.

use apiserver::http::{Body, Query, body};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// How many objects a page has if the caller does not say.
const PAGE: usize = 500;

/// A page of a list, as texts.
#[derive(Debug, Clone)]
pub(super) struct Page {
    api_version: Option<Bytes>,
    kind: Option<Bytes>,
    metadata: Option<Bytes>,
    /// Without the brackets.
    items: Bytes,
    /// The token for the next page.
    pub(super) next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<'a> {
    #[serde(borrow)]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    items: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Page {
    /// Parses a page; `None` if it is not one.
    pub(super) fn read(text: &Bytes) -> Option<Self> {
        if !text.trim_ascii_start().starts_with(b"{") {
            return None;
        }
        let list: List<'_> = serde_json::from_slice(text).ok()?;
        let part = |raw: &RawValue| text.slice_ref(raw.get().as_bytes());
        let items = list.items.and_then(|raw| raw.get().strip_prefix('[')?.strip_suffix(']'));
        let metadata = list.metadata.and_then(|raw| serde_json::from_str::<Metadata>(raw.get()).ok());
        Some(Self {
            api_version: list.api_version.map(part),
            kind: list.kind.map(part),
            metadata: list.metadata.map(part),
            items: items.map(|items| text.slice_ref(items.trim().as_bytes())).unwrap_or_default(),
            next: metadata.and_then(|metadata| metadata.next).filter(|next| !next.is_empty()),
        })
    }
}

/// Appends the items of all lists to the first one. Each list is the pages of one member; `None` if there are no lists.
pub(super) fn merged(lists: &[Vec<Page>]) -> Option<Body> {
    // The metadata of the last page holds for the whole list: nothing is left.
    let first = lists.iter().find_map(|pages| pages.last())?;
    let mut pieces = vec![Bytes::from_static(b"{")];
    if let Some(version) = &first.api_version {
        pieces.extend([Bytes::from_static(b"\"apiVersion\":"), version.clone(), Bytes::from_static(b",")]);
    }
    pieces.push(Bytes::from_static(b"\"items\":["));
    let items = lists.iter().flatten().map(|page| &page.items).filter(|items| !items.is_empty());
    for (number, items) in items.enumerate() {
        if number > 0 {
            pieces.push(Bytes::from_static(b","));
        }
        pieces.push(items.clone());
    }
    pieces.push(Bytes::from_static(b"]"));
    for (name, part) in [(&b",\"kind\":"[..], &first.kind), (&b",\"metadata\":"[..], &first.metadata)] {
        if let Some(part) = part {
            pieces.extend([Bytes::from_static(name), part.clone()]);
        }
    }
    pieces.push(Bytes::from_static(b"}"));
    Some(body::pieces(pieces.into_iter()))
}

/// The requests to members: a list, page by page unless the caller asks for pages.
pub(super) struct Wanted {
    path: String,
    query: String,
    in_pages: bool,
}

impl Wanted {
    pub(super) fn new(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let asked = Query::parse(Some(query));
        // With a limit, a revision means exactly this one; without a limit, any that is not older.
        let is_exact = !matches!(asked.text("resourceVersion"), "" | "0");
        let in_pages = !is_exact && asked.get("limit").is_none() && asked.get("continue").is_none();
        Self { path: path.to_owned(), query: query.to_owned(), in_pages }
    }

    /// Returns the path and query of the first page.
    pub(super) fn first(&self) -> String {
        let Self { path, query, in_pages } = self;
        match (in_pages, query.as_str()) {
            (true, "") => format!("{path}?limit={PAGE}"),
            (true, query) => format!("{path}?{query}&limit={PAGE}"),
            (false, "") => path.clone(),
            (false, query) => format!("{path}?{query}"),
        }
    }

    /// Returns the path and query of the next page; `None` if the caller asks for pages, or if there are no more.
    pub(super) fn after(&self, page: &Page) -> Option<String> {
        let next = page.next.as_deref().filter(|_| self.in_pages)?;
        // The token determines the revision.
        let rest =
            self.query.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("resourceVersion"));
        let mut query: Vec<String> = rest.map(str::to_owned).collect();
        query.push(format!("limit={PAGE}"));
        query.push(format!("continue={}", escaped(next)));
        Some(format!("{}?{}", self.path, query.join("&")))
    }
}

fn escaped(token: &str) -> String {
    token.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte))
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn page(revision: &str, items: &str) -> Page {
        let text =
            format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"{revision}"}},"items":{items}}}"#);
        Page::read(&Bytes::from(text)).expect("a page")
    }

    async fn text(lists: &[Vec<Page>]) -> String {
        let body = merged(lists).expect("a list").collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn lists_are_put_into_the_first_one() {
        let lists = [vec![page("1", "[{\"a\":1}]")], vec![page("3", "null")], vec![page("4", "[ 2 ]")]];
        let expected = r#"{"items":[{"a":1},2],"kind":"PodList","metadata":{"resourceVersion":"1"}}"#;
        assert_eq!(text(&lists).await, expected);
        assert!(merged(&[]).is_none());
        for odd in ["<html>", "", "[1,2,3,4]", "{\"items\":[0}", "7"] {
            assert!(Page::read(&Bytes::from(odd)).is_none(), "{odd}");
        }
        let odd = Page::read(&Bytes::from_static(b"{\"items\":{\"a\":1},\"other\":[1]}")).expect("a page");
        assert_eq!(text(&[vec![odd]]).await, r#"{"items":[]}"#);
    }

    #[tokio::test]
    async fn pages_of_one_member_are_one_list() {
        let first = r#"{"apiVersion":"v1","metadata":{"continue":"t/1","remainingItemCount":1},"items":[1]}"#;
        let first = Page::read(&Bytes::from(first)).expect("a page");
        assert_eq!(first.next.as_deref(), Some("t/1"));
        let last =
            Page::read(&Bytes::from_static(br#"{"apiVersion":"v1","metadata":{"continue":""},"items":[2]}"#));
        let last = last.expect("a page");
        assert_eq!(last.next, None);
        let expected = r#"{"apiVersion":"v1","items":[1,2],"metadata":{"continue":""}}"#;
        assert_eq!(text(&[vec![first, last]]).await, expected);
    }

    #[test]
    fn a_request_without_a_limit_gets_the_whole_list() {
        let mut page = page("1", "[]");
        page.next = Some("t/1=".to_owned());
        for (asked, first, after) in [
            ("/api/v1/pods", "/api/v1/pods?limit=500", Some("/api/v1/pods?limit=500&continue=t%2F1%3D")),
            (
                "/api/v1/pods?labelSelector=a&resourceVersion=0",
                "/api/v1/pods?labelSelector=a&resourceVersion=0&limit=500",
                Some("/api/v1/pods?labelSelector=a&limit=500&continue=t%2F1%3D"),
            ),
            ("/api/v1/pods?limit=5", "/api/v1/pods?limit=5", None),
            ("/api/v1/pods?limit=5&continue=x", "/api/v1/pods?limit=5&continue=x", None),
            ("/api/v1/pods?resourceVersion=7", "/api/v1/pods?resourceVersion=7", None),
        ] {
            let wanted = Wanted::new(asked);
            assert_eq!(wanted.first(), first);
            assert_eq!(wanted.after(&page).as_deref(), after, "{asked}");
        }
        page.next = None;
        assert_eq!(Wanted::new("/api/v1/pods").after(&page), None);
    }
}
