//! One connection: bytes in, bytes out.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Settings;
use super::transaction::{Reaction, Then, Transaction};
use crate::sink::inbox::Inbox;

/// Longest command line; RFC 5321 §4.5.3.1.4 asks for 512, parameters may add to that.
const MAX_LINE: usize = 4_096;
/// A mail of the usual size is read at once.
const READ_AT_LEAST: usize = 32 * 1024;
const END: &[u8] = b"\r\n.\r\n";

/// Serves a connection to its end. A client that goes away is nothing to report.
pub(crate) async fn run(stream: TcpStream, inbox: Arc<Inbox>, settings: Arc<Settings>) {
    let _ = stream.set_nodelay(true);
    let max_body = settings.max_message_bytes;
    let mut session = Session {
        stream,
        input: Vec::with_capacity(READ_AT_LEAST),
        read: 0,
        output: Vec::with_capacity(512),
        transaction: Transaction::new(inbox, settings),
        body: None,
        max_body,
    };
    session.output.extend_from_slice(b"220 sink ESMTP\r\n");
    let _ = session.run().await;
}

struct Session {
    stream: TcpStream,
    /// Received, and not yet handled from `read` on.
    input: Vec<u8>,
    read: usize,
    /// Answers not yet sent. They are sent when there is nothing left to handle: one write for a pipeline.
    output: Vec<u8>,
    transaction: Transaction,
    /// Set while a body is read.
    body: Option<Body>,
    max_body: usize,
}

struct Body {
    /// How much of the input behind `read` was searched for the end.
    searched: usize,
    /// Larger than allowed: read on, keep nothing.
    oversize: bool,
    /// Nothing of it was received yet.
    new: bool,
}

impl Session {
    async fn run(&mut self) -> io::Result<()> {
        loop {
            let reaction = match self.body.take() {
                Some(body) => self.read_body(body),
                None => self.read_line(),
            };
            let Some(reaction) = reaction else {
                self.flush().await?;
                if !self.receive().await? {
                    return Ok(());
                }
                continue;
            };
            if let Some(delay) = reaction.delay {
                self.flush().await?;
                tokio::time::sleep(delay).await;
            }
            if let Some(answer) = reaction.answer {
                self.output.extend_from_slice(answer.as_bytes());
                self.output.extend_from_slice(b"\r\n");
            }
            match reaction.then {
                Then::Go => {}
                Then::ReadBody => {
                    self.body = Some(Body { searched: 0, oversize: false, new: true });
                }
                Then::Close => return self.flush().await,
                Then::Abort => return Ok(()),
            }
        }
    }

    /// The reaction to the next whole line; `None` needs more input.
    fn read_line(&mut self) -> Option<Reaction> {
        let unread = &self.input[self.read..];
        let Some(end) = memchr::memchr(b'\n', unread) else {
            return (unread.len() > MAX_LINE).then(too_long);
        };
        if end > MAX_LINE {
            return Some(too_long());
        }
        let line = &unread[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let reaction = self.transaction.line(line);
        self.read += end + 1;
        Some(reaction)
    }

    /// The reaction to the beginning or the end of a body; `None` needs more input.
    fn read_body(&mut self, mut body: Body) -> Option<Reaction> {
        let unread = &self.input[self.read..];
        if unread.is_empty() {
            self.body = Some(body);
            return None;
        }
        if body.new {
            body.new = false;
            let reaction = self.transaction.body_begins();
            self.body = Some(body);
            return Some(reaction);
        }
        // Only CR LF ends a line here: a bare LF before the dot is how mail is smuggled through relays.
        let end = if unread.starts_with(&END[2..]) && body.searched == 0 && !body.oversize {
            Some((0, 3))
        } else {
            memchr::memmem::find(&unread[body.searched..], END)
                .map(|place| body.searched + place)
                .map(|place| (place + 2, place + END.len()))
        };
        if let Some((length, consumed)) = end {
            let fits = !body.oversize && length <= self.max_body;
            let reaction = self.transaction.body_ends(fits.then_some(&unread[..length]));
            self.read += consumed;
            return Some(reaction);
        }
        // The end may be half here.
        body.searched = unread.len().saturating_sub(END.len() - 1);
        if body.searched > self.max_body {
            body.oversize = true;
            self.read += body.searched;
            body.searched = 0;
        }
        self.body = Some(body);
        None
    }

    /// Reads what has arrived; `false` at the end of the connection.
    async fn receive(&mut self) -> io::Result<bool> {
        if self.read == self.input.len() {
            self.input.clear();
            self.read = 0;
        } else if self.read > 0 {
            self.input.drain(..self.read);
            self.read = 0;
        }
        // A large mail must not keep its memory for the rest of the connection.
        if self.input.is_empty() && self.input.capacity() > 16 * READ_AT_LEAST {
            self.input = Vec::new();
        }
        self.input.reserve(READ_AT_LEAST);
        Ok(self.stream.read_buf(&mut self.input).await? > 0)
    }

    async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).await?;
            self.output.clear();
        }
        Ok(())
    }
}

fn too_long() -> Reaction {
    Reaction { delay: None, answer: Some("500 5.5.2 Line too long".into()), then: Then::Close }
}
