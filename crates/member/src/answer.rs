//! Reads answers of servers that are not members: interpreter webhooks, search engines.
//!
//! They are trusted as little as members are, and their answers have the same two limits: their bytes, and what these become once
//! they are parsed. The rest of an answer that exceeds one of them is not read.

use apimachinery::weight::Weight;
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tower::BoxError;

use crate::limit::{ANSWER_LIMIT, ANSWER_WEIGHT};

/// Why an answer was not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the answer has more than {} MiB, which are not read", ANSWER_LIMIT >> 20)]
    TooLong,
    #[error("the answer becomes objects of more than {} MiB, which is not read", ANSWER_WEIGHT >> 20)]
    TooHeavy,
    #[error("the answer cannot be read: {0}")]
    BrokenOff(BoxError),
}

/// Reads a whole answer, if it is within the limits.
pub async fn read<B>(body: B) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut body = std::pin::pin!(body);
    let (mut read, mut weight) = (BytesMut::new(), Weight::default());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Error::BrokenOff(error.into()))?;
        let Some(data) = frame.data_ref() else { continue };
        if read.len().saturating_add(data.len()) > ANSWER_LIMIT {
            return Err(Error::TooLong);
        }
        weight.add(data);
        if weight.total() > ANSWER_WEIGHT {
            return Err(Error::TooHeavy);
        }
        read.extend_from_slice(data);
    }
    Ok(read.freeze())
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    async fn sent(text: Vec<u8>) -> Result<usize, String> {
        let chunks: Vec<_> = text.chunks(1 << 16).map(|chunk| Bytes::from(chunk.to_vec())).collect();
        let frames = chunks.into_iter().map(|chunk| Ok::<_, BoxError>(Frame::data(chunk)));
        let body = StreamBody::new(futures::stream::iter(frames));
        read(body).await.map(|read| read.len()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn finding_16_an_answer_has_a_length_and_a_weight() {
        assert_eq!(sent(vec![b'x'; ANSWER_LIMIT]).await, Ok(ANSWER_LIMIT));
        assert_eq!(
            sent(vec![b'x'; ANSWER_LIMIT + 1]).await,
            Err("the answer has more than 8 MiB, which are not read".to_owned())
        );
        let parts = format!("[{}0]", r#"{"":0},"#.repeat(1_000_000));
        assert_eq!(
            sent(parts.into_bytes()).await,
            Err("the answer becomes objects of more than 128 MiB, which is not read".to_owned())
        );
    }
}
