//! Limits the size of a member's answers.
//!
//! Members are other people's clusters; one that is hostile, or broken, must not take the control plane's
//! memory. Every client of a [`Member`](crate::Member) counts what comes in, after decompression: one answer
//! has a limit, one line of a watch has a limit, and so has everything that is being read from one member at
//! the same time. The limit of an answer has two sides: its bytes, and what they become once they are parsed
//! ([`Weight`]), since small parts become a hundred times their bytes. What is kept of a member is limited by a [`Budget`].

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use apimachinery::weight::Weight;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
pub use runtime::room::{Budget, TooLarge};
use tower::{BoxError, Layer, Service};

/// One answer: an object, an error, a page of discovery; also one line of a watch. No API server stores objects of more
/// than 3 MiB.
pub const ANSWER_LIMIT: usize = 8 << 20;
/// One page of a list. A larger page is requested again with fewer objects.
pub const PAGE_LIMIT: usize = 32 << 20;
/// The limit for the parsed form of an answer or a line of a watch. A list of 8 MiB of ordinary objects becomes about 90 MiB.
/// Half of the largest objects that etcd stores (1.5 MiB) may be field ownership, and they become less.
pub const ANSWER_WEIGHT: usize = 128 << 20;
/// The limit for the parsed form of a page. One of 500 Pods of 20 KB weighs about 170 MiB, and 32 MiB of metrics of Pods weigh
/// 360 MiB. Pages are parsed object by object, so this is not their actual memory; a heavier page is requested again with fewer
/// objects.
pub const PAGE_WEIGHT: usize = 384 << 20;
/// All answers of one member that are being read at the same time.
pub const MEMBER_LIMIT: usize = 128 << 20;
/// The limit for all copies of one member's objects together.
pub const COPY_LIMIT: usize = 512 << 20;
/// The length limit of an error's text, which ends up in conditions and events.
pub const MESSAGE_LIMIT: usize = 4 << 10;

/// An extension of requests for lists without pages: the answer may be as large as a page.
#[derive(Debug, Clone, Copy)]
pub struct Listing;

/// Shortens the text of an error.
pub(crate) fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_LIMIT {
        let end = (0..=MESSAGE_LIMIT).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str(" … (shortened)");
    }
    message
}

/// Puts the limits around a client.
#[derive(Clone)]
pub(crate) struct LimitLayer {
    cluster: Arc<str>,
    under_way: Arc<Budget>,
}

impl LimitLayer {
    pub(crate) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), under_way: Arc::new(Budget::new(MEMBER_LIMIT)) }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, layer: self.clone() }
    }
}

/// A client whose answers are limited.
#[derive(Clone)]
pub(crate) struct Limited<S> {
    inner: S,
    layer: LimitLayer,
}

impl<S, Q, B> Service<Request<Q>> for Limited<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<LimitedBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let bounds = match Bounds::of(request.uri().query().unwrap_or("")) {
            Bounds::Answer if request.extensions().get::<Listing>().is_some() => Bounds::Page,
            bounds => bounds,
        };
        let layer = self.layer.clone();
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| LimitedBody::new(body, layer, bounds))) })
    }
}

/// The limits of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bounds {
    Answer,
    Page,
    Line,
}

impl Bounds {
    fn of(query: &str) -> Self {
        let has = |name: &str| query.split('&').any(|pair| pair.split('=').next() == Some(name));
        if query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")) {
            Self::Line
        } else if has("limit") {
            Self::Page
        } else {
            Self::Answer
        }
    }

    fn limit(self) -> usize {
        if self == Self::Page { PAGE_LIMIT } else { ANSWER_LIMIT }
    }

    fn weight(self) -> usize {
        if self == Self::Page { PAGE_WEIGHT } else { ANSWER_WEIGHT }
    }

    fn what_it_becomes(self) -> &'static str {
        match self {
            Self::Answer => "an answer that becomes objects",
            Self::Page => "a page of a list that becomes objects",
            Self::Line => "a line of a watch that becomes an object",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Answer => "an answer",
            Self::Page => "a page of a list",
            Self::Line => "a line of a watch",
        }
    }
}

pub(crate) struct LimitedBody {
    inner: UnsyncBoxBody<Bytes, BoxError>,
    layer: LimitLayer,
    bounds: Bounds,
    /// The bytes that have been read but not completely passed on; they count towards the member's total.
    pending: usize,
    /// The estimated size of its parsed form.
    weight: Weight,
}

impl LimitedBody {
    fn new<B>(body: B, layer: LimitLayer, bounds: Bounds) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self {
            inner: body.map_err(Into::into).boxed_unsync(),
            layer,
            bounds,
            pending: 0,
            weight: Weight::default(),
        }
    }

    /// Counts received bytes.
    fn count(&mut self, data: &[u8]) -> Result<(), TooLarge> {
        let mut pending = self.pending;
        let (mut longest, mut heaviest) = (pending, 0);
        if self.bounds == Bounds::Line {
            for (index, piece) in data.split(|byte| *byte == b'\n').enumerate() {
                if index > 0 {
                    (pending, self.weight) = (0, Weight::default());
                }
                pending = pending.saturating_add(piece.len());
                self.weight.add(piece);
                longest = longest.max(pending);
                heaviest = heaviest.max(self.weight.total());
            }
        } else {
            pending = pending.saturating_add(data.len());
            self.weight.add(data);
            (longest, heaviest) = (pending, self.weight.total());
        }
        let too_large = |what: &'static str, limit: usize| TooLarge {
            cluster: self.layer.cluster.to_string(),
            what,
            limit,
        };
        if longest > self.bounds.limit() {
            return Err(too_large(self.bounds.what(), self.bounds.limit()));
        }
        if heaviest > self.bounds.weight() {
            return Err(too_large(self.bounds.what_it_becomes(), self.bounds.weight()));
        }
        if !self.layer.under_way.exchange(self.pending, pending) {
            return Err(too_large("answers at the same time", MEMBER_LIMIT));
        }
        self.pending = pending;
        Ok(())
    }
}

impl Drop for LimitedBody {
    fn drop(&mut self) {
        self.layer.under_way.exchange(self.pending, 0);
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.count(data)
        {
            tracing::warn!("{error}");
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;

    use super::*;

    fn body(layer: &LimitLayer, bounds: Bounds, chunks: Vec<Vec<u8>>) -> LimitedBody {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, BoxError>(Frame::data(Bytes::from(chunk))));
        LimitedBody::new(StreamBody::new(futures::stream::iter(frames)), layer.clone(), bounds)
    }

    async fn read(layer: &LimitLayer, bounds: Bounds, chunks: Vec<Vec<u8>>) -> Result<usize, String> {
        match body(layer, bounds, chunks).collect().await {
            Ok(all) => Ok(all.to_bytes().len()),
            Err(error) => Err(TooLarge::within(&*error).expect("it is too large").to_string()),
        }
    }

    #[test]
    fn the_request_decides_which_limit_applies() {
        assert_eq!(Bounds::of(""), Bounds::Answer);
        assert_eq!(Bounds::of("labelSelector=a&limit=500"), Bounds::Page);
        assert_eq!(Bounds::of("watch=true&limit=500"), Bounds::Line);
        assert_eq!(Bounds::of("fieldSelector=limit"), Bounds::Answer);
    }

    #[tokio::test]
    async fn finding_16_an_answer_of_a_member_has_a_limit() {
        let layer = LimitLayer::new("m1");
        let mib = |count: usize| vec![vec![b'x'; 1 << 20]; count];
        assert_eq!(read(&layer, Bounds::Answer, mib(8)).await, Ok(8 << 20));
        assert_eq!(
            read(&layer, Bounds::Answer, mib(9)).await.unwrap_err(),
            "cluster m1 sent an answer of more than 8 MiB, which is not read"
        );
        assert_eq!(read(&layer, Bounds::Page, mib(32)).await, Ok(32 << 20));
        assert_eq!(
            read(&layer, Bounds::Page, mib(33)).await.unwrap_err(),
            "cluster m1 sent a page of a list of more than 32 MiB, which is not read"
        );
        assert_eq!(layer.under_way.used(), 0);
    }

    /// A Pod as members send it, of about 20 KB: half of it is field ownership.
    fn pod() -> String {
        let owned = r#""f:terminationMessagePath":{},"f:terminationMessagePolicy":{},".":{},"f:name":{},"#
            .repeat(120);
        let variables = r#"{"name":"SOME_VARIABLE","value":"some value, {as it may be}"},"#.repeat(160);
        let pod = format!(
            r#"{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{{{owned}"f:x":{{}}}}}}]}},"spec":{{"containers":[{{"env":[{variables}{{}}]}}]}}}}"#
        );
        assert!((18_000..22_000).contains(&pod.len()), "{}", pod.len());
        pod
    }

    #[tokio::test]
    async fn finding_16_an_answer_of_small_parts_counts_as_what_it_becomes() {
        let layer = LimitLayer::new("m1");
        let send = async |bounds: Bounds, text: String| {
            read(&layer, bounds, text.as_bytes().chunks(1 << 16).map(<[u8]>::to_vec).collect()).await
        };
        let owners =
            |count: usize| format!(r#"{{"metadata":{{"managedFields":[{}{{}}]}}}}"#, "{},".repeat(count));
        assert_eq!(
            send(Bounds::Answer, owners(1 << 20)).await.unwrap_err(),
            "cluster m1 sent an answer that becomes objects of more than 128 MiB, which is not read"
        );
        assert_eq!(
            send(Bounds::Line, owners(1 << 20)).await.unwrap_err(),
            "cluster m1 sent a line of a watch that becomes an object of more than 128 MiB, which is not read"
        );
        assert_eq!(
            send(Bounds::Page, format!("[{}0]", r#"{"metadata":{}},"#.repeat(1 << 19))).await.unwrap_err(),
            "cluster m1 sent a page of a list that becomes objects of more than 384 MiB, which is not read"
        );
        let page = format!(r#"{{"items":[{}]}}"#, vec![pod(); 500].join(","));
        assert_eq!(send(Bounds::Page, page.clone()).await, Ok(page.len()), "a page of full Pods is read");
        let lines = format!("{}\n", pod()).repeat(10_000);
        assert_eq!(send(Bounds::Line, lines.clone()).await, Ok(lines.len()), "each line counts for itself");
        assert_eq!(layer.under_way.used(), 0);
    }

    #[tokio::test]
    async fn a_list_without_pages_may_be_as_large_as_one() {
        use tower::ServiceExt as _;
        let answer = |listing: bool| async move {
            let large = tower::service_fn(|_: Request<()>| async {
                Ok::<_, BoxError>(Response::new(http_body_util::Full::new(Bytes::from(vec![b'x'; 9 << 20]))))
            });
            let mut request = Request::get("/apis/metrics.k8s.io/v1beta1/pods").body(()).unwrap();
            if listing {
                request.extensions_mut().insert(Listing);
            }
            let answer = LimitLayer::new("m1").layer(large).oneshot(request).await.unwrap();
            answer.into_body().collect().await.is_ok()
        };
        assert!(answer(true).await && !answer(false).await);
    }

    #[tokio::test]
    async fn a_watch_may_last_for_ever_and_its_lines_may_not() {
        let layer = LimitLayer::new("m1");
        let mut line = vec![b'x'; 1 << 20];
        line.push(b'\n');
        assert_eq!(read(&layer, Bounds::Line, vec![line; 20]).await, Ok(20 * ((1 << 20) + 1)));
        assert_eq!(
            read(&layer, Bounds::Line, vec![vec![b'x'; 1 << 20]; 9]).await.unwrap_err(),
            "cluster m1 sent a line of a watch of more than 8 MiB, which is not read"
        );
        let mut hidden = vec![b'x'; ANSWER_LIMIT + 1];
        hidden.push(b'\n');
        assert!(
            read(&layer, Bounds::Line, vec![hidden]).await.is_err(),
            "a line that comes at once counts, too"
        );
    }

    #[tokio::test]
    async fn finding_16_answers_at_the_same_time_have_a_limit_together() {
        let layer = LimitLayer::new("m1");
        let mut open = Vec::new();
        let mut refused = None;
        for _ in 0..5 {
            let mut body = body(&layer, Bounds::Page, vec![vec![b'x'; PAGE_LIMIT]]);
            if let Some(Err(error)) = body.frame().await {
                refused = TooLarge::within(&*error).map(ToString::to_string);
            }
            open.push(body);
        }
        assert_eq!(
            refused.as_deref(),
            Some("cluster m1 sent answers at the same time of more than 128 MiB, which is not read")
        );
        drop(open);
        assert_eq!(layer.under_way.used(), 0);
    }

    #[test]
    fn it_is_found_wherever_it_is_wrapped() {
        let error = TooLarge { cluster: "m1".to_owned(), what: "an answer", limit: 1 << 20 };
        let wrapped =
            kube::Error::ReadEvents(std::io::Error::other(kube::Error::Service(error.clone().into())));
        assert_eq!(TooLarge::within(&wrapped), Some(&error));
        assert_eq!(TooLarge::within(&std::io::Error::other("else")), None);
    }

    #[test]
    fn a_long_refusal_is_shortened() {
        let short = shortened("ü".repeat(MESSAGE_LIMIT));
        assert!(short.len() < MESSAGE_LIMIT + 30 && short.ends_with("ü … (shortened)"), "{}", short.len());
        assert_eq!(shortened("as it is".to_owned()), "as it is");
    }

    #[test]
    fn a_budget_is_not_exceeded() {
        let budget = Budget::new(10);
        assert!(budget.exchange(0, 8));
        assert!(!budget.exchange(0, 3));
        assert!(budget.exchange(8, 10));
        assert!(budget.exchange(10, 4) && budget.used() == 4);
    }
}
