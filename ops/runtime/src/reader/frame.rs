//! The protocol between parent and child. A request is a kind (one byte of length, the word) and an input (four bytes of length, the
//! bytes); an answer is a tag and a result (four bytes of length, the bytes). Numbers are big-endian. One request is open at a time.

use std::io::{self, Read, Write};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{INPUT_BYTES_MAX, RESULT_BYTES_MAX, ReadFault, ReaderError};
use crate::Spent;

/// What a child says first: its limits are set.
const READY: u8 = 0;
const DONE: u8 = 1;
const PANICKED: u8 = 2;
const UNDECODABLE: u8 = 3;
/// The first of the tags of [`SPENT`], in its order.
const SPENT_FIRST: u8 = 16;
const SPENT: [Spent; 5] = [Spent::Input, Spent::Held, Spent::Depth, Spent::Steps, Spent::Time];

/// A request as the child reads it.
pub(super) struct Request {
    pub(super) kind: Vec<u8>,
    pub(super) input: Vec<u8>,
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads one request; none at the end of the input.
pub(super) fn read_request(from: &mut impl Read) -> io::Result<Option<Request>> {
    let mut length = [0; 1];
    if from.read(&mut length)? == 0 {
        return Ok(None);
    }
    let mut kind = vec![0; usize::from(length[0])];
    from.read_exact(&mut kind)?;
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > INPUT_BYTES_MAX {
        return Err(malformed("input too long"));
    }
    let mut input = vec![0; length];
    from.read_exact(&mut input)?;
    Ok(Some(Request { kind, input }))
}

pub(super) fn write_ready(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&[READY])?;
    to.flush()
}

pub(super) fn write_answer(to: &mut impl Write, answer: &Result<Vec<u8>, ReaderError>) -> io::Result<()> {
    let empty = Vec::new();
    let (tag, result) = match answer {
        Ok(result) if result.len() > RESULT_BYTES_MAX => (spent_tag(Spent::Held), &empty),
        Ok(result) => (DONE, result),
        Err(ReaderError::Spent(spent)) => (spent_tag(*spent), &empty),
        Err(ReaderError::Undecodable) => (UNDECODABLE, &empty),
        Err(_) => (PANICKED, &empty),
    };
    to.write_all(&[tag])?;
    to.write_all(&u32::try_from(result.len()).map_err(|_| malformed("result too long"))?.to_be_bytes())?;
    to.write_all(result)?;
    to.flush()
}

fn spent_tag(spent: Spent) -> u8 {
    let at = SPENT.iter().position(|known| *known == spent).unwrap_or_default();
    SPENT_FIRST + u8::try_from(at).unwrap_or_default()
}

pub(super) async fn await_ready(from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    match from.read_u8().await? {
        READY => Ok(()),
        _ => Err(malformed("no reader")),
    }
}

pub(super) async fn send_request(to: &mut (impl AsyncWrite + Unpin), kind: &str, input: &[u8]) -> io::Result<()> {
    let mut head = Vec::with_capacity(1 + kind.len() + 4);
    head.push(u8::try_from(kind.len()).map_err(|_| malformed("kind too long"))?);
    head.extend_from_slice(kind.as_bytes());
    head.extend_from_slice(&u32::try_from(input.len()).map_err(|_| malformed("input too long"))?.to_be_bytes());
    to.write_all(&head).await?;
    to.write_all(input).await?;
    to.flush().await
}

pub(super) async fn receive_answer(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Result<Vec<u8>, ReaderError>> {
    let tag = from.read_u8().await?;
    let length = from.read_u32().await? as usize;
    if length > RESULT_BYTES_MAX {
        return Err(malformed("result too long"));
    }
    let mut result = vec![0; length];
    from.read_exact(&mut result).await?;
    match tag {
        DONE => Ok(Ok(result)),
        PANICKED => Ok(Err(ReaderError::Crashed)),
        UNDECODABLE => Ok(Err(ReadFault::Undecodable.into())),
        _ => tag
            .checked_sub(SPENT_FIRST)
            .and_then(|at| SPENT.get(usize::from(at)))
            .map(|spent| Err(ReaderError::Spent(*spent)))
            .ok_or_else(|| malformed("unknown answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_answer_arrives_as_it_was_sent() {
        let mut answers = vec![Ok(b"result".to_vec()), Err(ReaderError::Crashed), Err(ReaderError::Undecodable)];
        answers.extend(SPENT.map(|spent| Err(ReaderError::Spent(spent))));
        for answer in answers {
            let mut sent = Vec::new();
            write_answer(&mut sent, &answer).unwrap();
            assert_eq!(receive_answer(&mut sent.as_slice()).await.unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn a_request_arrives_whole_and_the_end_is_no_request() {
        let mut sent = Vec::new();
        send_request(&mut sent, "kind", b"input").await.unwrap();
        let mut from = sent.as_slice();
        let request = read_request(&mut from).unwrap().unwrap();
        assert_eq!((request.kind.as_slice(), request.input.as_slice()), (&b"kind"[..], &b"input"[..]));
        assert!(read_request(&mut from).unwrap().is_none());
    }

    #[tokio::test]
    async fn lengths_beyond_the_bounds_are_refused_before_memory_is_taken() {
        let request = [&[0_u8][..], &u32::MAX.to_be_bytes()].concat();
        assert!(read_request(&mut request.as_slice()).is_err());
        let answer = [&[DONE][..], &u32::MAX.to_be_bytes()].concat();
        assert!(receive_answer(&mut answer.as_slice()).await.is_err());
    }
}
