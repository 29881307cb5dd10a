//! The octets of a connection: command lines in, replies out, with limits of length and time.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::BareLineEnds;

/// The longest command line. RFC 5321 §4.5.3.1.4 asks for 512, and its extensions for some more.
const LINE_MAX: usize = 4_096;
/// A mail of the usual size is read at once.
const READ_AT_LEAST: usize = 32 * 1024;

/// Why a command is not read, or not obeyed to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFault {
    /// The connection ended, or was silent for too long.
    Gone,
    /// The process stops.
    Stopping,
    /// Longer than any command.
    TooLong,
    /// Ended by a bare line feed or carriage return, where these are refused.
    BareLineEnd,
    /// Not what AUTH asked for.
    AuthUnreadable,
    /// The client ended AUTH.
    AuthCancelled,
}

impl From<io::Error> for LineFault {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

#[derive(Debug)]
pub(super) struct SmtpWire<S> {
    stream: S,
    silence_timeout: Duration,
    bare_line_ends: BareLineEnds,
    /// Received, and not yet handled from `at` on.
    input: Vec<u8>,
    at: usize,
    output: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> SmtpWire<S> {
    pub(super) fn new(stream: S, silence_timeout: Duration, bare_line_ends: BareLineEnds) -> Self {
        let (input, output) = (Vec::with_capacity(READ_AT_LEAST), Vec::with_capacity(512));
        Self { stream, silence_timeout, bare_line_ends, input, at: 0, output }
    }

    /// The connection itself, for TLS.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// Received octets that are not handled yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.input[self.at..]
    }

    /// Marks octets as handled.
    pub(super) fn consume(&mut self, count: usize) {
        self.at += count;
    }

    /// Adds a reply to those that are sent next.
    pub(super) fn push_reply(&mut self, reply: &str) {
        self.output.extend_from_slice(reply.as_bytes());
        self.output.extend_from_slice(b"\r\n");
    }

    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let limit = self.silence_timeout;
        timeout(limit, self.write()).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Sends the replies, and waits for more octets.
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        let limit = self.silence_timeout;
        timeout(limit, self.read()).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// The next command line, without its end. It takes no longer than the time of silence.
    pub(super) async fn line(&mut self) -> Result<String, LineFault> {
        let limit = self.silence_timeout;
        let whole_line = async {
            loop {
                if let Some(line) = self.received_line()? {
                    return Ok(line);
                }
                self.read().await.map_err(|_| LineFault::Gone)?;
            }
        };
        timeout(limit, whole_line).await.unwrap_or(Err(LineFault::Gone))
    }

    /// A command line that is there as a whole.
    pub(super) fn received_line(&mut self) -> Result<Option<String>, LineFault> {
        let unread = self.unread();
        let end = memchr::memchr(b'\n', unread);
        if end.unwrap_or(unread.len()) > LINE_MAX {
            return Err(LineFault::TooLong);
        }
        let Some(end) = end else { return Ok(None) };
        let line = &unread[..end];
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        let is_bare = text.len() == line.len() || text.contains(&b'\r');
        if is_bare && self.bare_line_ends == BareLineEnds::Refuse {
            return Err(LineFault::BareLineEnd);
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.consume(end + 1);
        Ok(Some(text))
    }

    async fn write(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.stream.flush().await?;
            self.output.clear();
        }
        Ok(())
    }

    async fn read(&mut self) -> io::Result<()> {
        self.write().await?;
        self.input.drain(..self.at);
        self.at = 0;
        self.input.reserve(READ_AT_LEAST);
        let read = self.stream.read_buf(&mut self.input).await?;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}
