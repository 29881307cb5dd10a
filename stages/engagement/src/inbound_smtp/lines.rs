//! Command lines and replies of a connection, with limits of length and time.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// The longest command line; RFC 5321 §4.5.3.1.4 asks for 512, and its extensions for some more.
const LINE_MAX: usize = 2_048;
/// How long the client may be silent, and take for one command.
const SILENCE: Duration = Duration::from_secs(60);

/// Why a line could not be read.
#[derive(Debug)]
pub(super) enum LineFault {
    /// The connection ended, or was silent for too long.
    Gone,
    /// Longer than any command.
    TooLong,
    /// Ended by a bare line feed or carriage return: what comes next may be read differently by others (request smuggling).
    Bare,
}

/// A connection, by lines.
#[derive(Debug)]
pub(super) struct SmtpLines<S> {
    stream: S,
    read: Vec<u8>,
    at: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> SmtpLines<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: Vec::with_capacity(8 * 1024), at: 0 }
    }

    /// Received octets that are not consumed yet.
    pub(super) fn waiting(&self) -> &[u8] {
        &self.read[self.at..]
    }

    /// The connection itself, for TLS; nothing may wait.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// Marks octets as read.
    pub(super) fn consume(&mut self, count: usize) {
        self.at += count;
        if self.at == self.read.len() {
            self.read.clear();
            self.at = 0;
        }
    }

    /// Waits for more octets.
    pub(super) async fn more(&mut self) -> io::Result<()> {
        if self.at > 0 {
            self.read.drain(..self.at);
            self.at = 0;
        }
        let read =
            timeout(SILENCE, self.stream.read_buf(&mut self.read)).await.map_err(|_| io::ErrorKind::TimedOut)??;
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// The next line, without its end.
    pub(super) async fn line(&mut self) -> Result<String, LineFault> {
        timeout(SILENCE, self.whole_line()).await.unwrap_or(Err(LineFault::Gone))
    }

    async fn whole_line(&mut self) -> Result<String, LineFault> {
        let mut searched = 0;
        loop {
            let waiting = self.waiting();
            if let Some(end) = waiting[searched..].iter().position(|byte| *byte == b'\n').map(|at| at + searched) {
                let line = &waiting[..end];
                let Some(line) = line.strip_suffix(b"\r") else { return Err(LineFault::Bare) };
                if line.contains(&b'\r') {
                    return Err(LineFault::Bare);
                }
                if line.len() > LINE_MAX {
                    return Err(LineFault::TooLong);
                }
                let line = String::from_utf8_lossy(line).into_owned();
                self.consume(end + 1);
                return Ok(line);
            }
            searched = waiting.len();
            if searched > LINE_MAX {
                return Err(LineFault::TooLong);
            }
            self.more().await.map_err(|_| LineFault::Gone)?;
        }
    }

    /// Writes replies, each line with its end.
    pub(super) async fn reply(&mut self, text: &str) -> io::Result<()> {
        let wire: String = text.lines().map(|line| format!("{line}\r\n")).collect();
        let write = async {
            self.stream.write_all(wire.as_bytes()).await?;
            self.stream.flush().await
        };
        timeout(SILENCE, write).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}
