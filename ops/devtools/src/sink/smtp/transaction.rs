//! What a connection may do next, and what it is answered. No input or output happens here.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::Settings;
use super::auth::{Exchange, Turn};
use super::command::Command;
use crate::sink::answer::{Outcome, Stage};
use crate::sink::inbox::Inbox;
use crate::sink::message::StoredMessage;

/// More are refused (RFC 5321 §4.5.3.1.8 asks for at least 100).
const MAX_RECIPIENTS: usize = 1_000;

/// An answer, and what the connection does with it.
#[derive(Debug)]
pub(crate) struct Reaction {
    /// To wait before the answer.
    pub(crate) delay: Option<Duration>,
    /// Lines without the last line end; `None` says nothing.
    pub(crate) answer: Option<Cow<'static, str>>,
    /// What comes then.
    pub(crate) then: Then,
}

/// What a connection does after an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Reads the next command.
    Go,
    /// Reads a body up to its final dot.
    ReadBody,
    /// Ends in order.
    Close,
    /// Ends without sending what is still unsent.
    Abort,
}

impl Reaction {
    fn say(answer: &'static str) -> Self {
        Self { delay: None, answer: Some(Cow::Borrowed(answer)), then: Then::Go }
    }

    fn say_and(answer: &'static str, then: Then) -> Self {
        Self { then, ..Self::say(answer) }
    }
}

/// The state of a connection.
#[derive(Debug)]
pub(crate) struct Transaction {
    inbox: Arc<Inbox>,
    settings: Arc<Settings>,
    greeted: bool,
    authenticated: bool,
    exchange: Option<Exchange>,
    /// `MAIL` was accepted.
    open: bool,
    /// Envelope and body of the mail on its way; its memory serves one mail after the other.
    message: StoredMessage,
}

impl Transaction {
    pub(crate) fn new(inbox: Arc<Inbox>, settings: Arc<Settings>) -> Self {
        Self {
            inbox,
            authenticated: settings.credentials.is_none(),
            settings,
            greeted: false,
            exchange: None,
            open: false,
            message: StoredMessage::default(),
        }
    }

    /// Answers one line.
    pub(crate) fn line(&mut self, line: &[u8]) -> Reaction {
        // Addresses are UTF-8 at most (RFC 6531).
        let Ok(line) = std::str::from_utf8(line) else {
            return Reaction::say("500 5.5.2 Not UTF-8");
        };
        if let Some(exchange) = self.exchange.take() {
            return self.exchange_line(exchange, line);
        }
        match Command::parse(line) {
            Command::Ehlo => self.ehlo(),
            Command::Helo => {
                self.reset();
                self.greeted = true;
                Reaction::say("250 sink")
            }
            Command::Mail { from, size } => self.mail(from, size),
            Command::Rcpt { to } => self.rcpt(to),
            Command::Data => self.data(),
            Command::Rset => {
                self.reset();
                Reaction::say("250 2.0.0 Forgotten")
            }
            Command::Noop => Reaction::say("250 2.0.0 Nothing done"),
            Command::Verify => Reaction::say("252 2.5.0 Send and see"),
            Command::Auth { mechanism, initial } => self.auth(mechanism, initial),
            Command::Quit => Reaction::say_and("221 2.0.0 Goodbye", Then::Close),
            Command::Malformed => Reaction::say("501 5.5.4 These arguments are not understood"),
            Command::Unknown => Reaction::say("500 5.5.1 Unknown command"),
        }
    }

    fn ehlo(&mut self) -> Reaction {
        self.reset();
        self.greeted = true;
        let auth = if self.settings.credentials.is_some() { "250-AUTH PLAIN LOGIN\r\n" } else { "" };
        let lines = format!(
            "250-sink\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-ENHANCEDSTATUSCODES\r\n{auth}250 SIZE {}",
            self.settings.max_message_bytes
        );
        Reaction { delay: None, answer: Some(Cow::Owned(lines)), then: Then::Go }
    }

    fn auth(&mut self, mechanism: &str, initial: Option<&str>) -> Reaction {
        if self.settings.credentials.is_none() {
            return Reaction::say("502 5.5.1 AUTH is not offered");
        }
        if self.authenticated || !self.greeted || self.open {
            return Reaction::say("503 5.5.1 AUTH does not belong here");
        }
        match Exchange::begin(mechanism, initial) {
            Some(turn) => self.turn(turn),
            None => Reaction::say("504 5.5.4 PLAIN or LOGIN"),
        }
    }

    fn exchange_line(&mut self, exchange: Exchange, line: &str) -> Reaction {
        if line == "*" {
            return Reaction::say("501 5.7.0 AUTH cancelled");
        }
        self.turn(exchange.line(line))
    }

    fn turn(&mut self, turn: Turn) -> Reaction {
        match turn {
            Turn::Ask(exchange) => {
                let prompt = exchange.prompt();
                self.exchange = Some(exchange);
                Reaction::say(prompt)
            }
            Turn::Presented { user, password } => {
                self.authenticated = self
                    .settings
                    .credentials
                    .as_ref()
                    .is_some_and(|own| own.user.as_bytes() == user && own.password.as_bytes() == password);
                if self.authenticated {
                    Reaction::say("235 2.7.0 Authenticated")
                } else {
                    Reaction::say("535 5.7.8 Wrong user or password")
                }
            }
            Turn::Unreadable => Reaction::say("501 5.5.2 Not readable"),
        }
    }

    fn mail(&mut self, from: &str, size: Option<u64>) -> Reaction {
        if !self.greeted {
            return Reaction::say("503 5.5.1 EHLO first");
        }
        if !self.authenticated {
            return Reaction::say("530 5.7.0 AUTH first");
        }
        if self.open {
            return Reaction::say("503 5.5.1 One MAIL at a time");
        }
        if size.is_some_and(|size| size > self.settings.max_message_bytes as u64) {
            return Reaction::say("552 5.3.4 Larger than SIZE");
        }
        self.message.reset();
        self.message.from.push_str(from);
        let reaction = self.at(Stage::Mail, Reaction::say("250 2.1.0 Sender accepted"), std::iter::once(from));
        self.open = is_yes(&reaction);
        reaction
    }

    fn rcpt(&mut self, to: &str) -> Reaction {
        if !self.open {
            return Reaction::say("503 5.5.1 MAIL first");
        }
        if self.message.to.len() >= MAX_RECIPIENTS {
            return Reaction::say("452 4.5.3 Too many recipients");
        }
        let reaction = self.at(Stage::Rcpt, Reaction::say("250 2.1.5 Recipient accepted"), std::iter::once(to));
        if is_yes(&reaction) {
            self.message.to.push(to.to_owned());
        }
        reaction
    }

    fn data(&mut self) -> Reaction {
        if !self.open {
            return Reaction::say("503 5.5.1 MAIL first");
        }
        if self.message.to.is_empty() {
            return Reaction::say("554 5.5.1 No valid recipients");
        }
        let reaction = self.at_recipients(Stage::Data, Reaction::say_and("354 Send it, then a dot", Then::ReadBody));
        if !is_yes(&reaction) {
            self.reset();
        }
        reaction
    }

    /// Called when the first bytes of the body are there: `Some` ends the connection or makes it wait.
    pub(crate) fn body_begins(&mut self) -> Reaction {
        let go_on = Reaction { delay: None, answer: None, then: Then::Go };
        self.at_recipients(Stage::Body, go_on)
    }

    /// Ends the transaction with a whole body; `None` when it was larger than allowed.
    pub(crate) fn body_ends(&mut self, body: Option<&[u8]>) -> Reaction {
        let Some(body) = body else {
            self.reset();
            return Reaction::say("552 5.3.4 Larger than SIZE");
        };
        let mut reaction = self.at_recipients(Stage::Dot, Reaction::say("250 2.0.0 Accepted"));
        if is_yes(&reaction) || reaction.answer.is_none() && reaction.then == Then::Close {
            unstuff(body, &mut self.message.source);
            let id = self.inbox.accept(&mut self.message);
            if reaction.answer.is_some() {
                reaction.answer = Some(Cow::Owned(format!("250 2.0.0 Accepted as {id}")));
            }
        }
        self.reset();
        reaction
    }

    fn at_recipients(&self, stage: Stage, well: Reaction) -> Reaction {
        self.at(stage, well, self.message.to.iter().map(String::as_str))
    }

    /// `well`, or what the addresses' scripts and the rules put in its place.
    fn at<'a>(&self, stage: Stage, well: Reaction, addresses: impl Iterator<Item = &'a str>) -> Reaction {
        let Some(behaviour) = self.inbox.behaviour_at(stage, addresses) else {
            return well;
        };
        let delay = behaviour.delay;
        match behaviour.outcome {
            None => Reaction { delay, ..well },
            Some(Outcome::Reply(reply)) => Reaction {
                delay,
                // RFC 5321 §3.8: with 421 the server closes the connection.
                then: if reply.code() == 421 { Then::Close } else { Then::Go },
                answer: Some(Cow::Owned(reply.line().to_owned())),
            },
            Some(Outcome::Drop) => Reaction { delay, answer: None, then: Then::Abort },
            // Answers to mails before this one are sent.
            Some(Outcome::DropAfterAccept) => Reaction { delay, answer: None, then: Then::Close },
        }
    }

    fn reset(&mut self) {
        self.open = false;
        self.message.reset();
    }
}

fn is_yes(reaction: &Reaction) -> bool {
    reaction.answer.as_ref().is_some_and(|answer| answer.starts_with(['2', '3']))
}

/// Removes the dots that the sender put before dots at the beginning of lines (RFC 5321 §4.5.2).
fn unstuff(body: &[u8], into: &mut Vec<u8>) {
    into.clear();
    into.reserve(body.len());
    let mut rest = body.strip_prefix(b".").unwrap_or(body);
    while let Some(place) = memchr::memmem::find(rest, b"\r\n.") {
        into.extend_from_slice(&rest[..place + 2]);
        rest = &rest[place + 3..];
    }
    into.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "")]
    #[case("a\r\nb\r\n", "a\r\nb\r\n")]
    #[case("..a\r\n", ".a\r\n")]
    #[case("a\r\n..\r\n...b\r\nc.d\r\n", "a\r\n.\r\n..b\r\nc.d\r\n")]
    fn a_stuffed_dot_is_removed(#[case] sent: &str, #[case] meant: &str) {
        let mut received = Vec::new();
        unstuff(sent.as_bytes(), &mut received);
        assert_eq!(received, meant.as_bytes());
    }

    proptest! {
        #[test]
        fn what_was_stuffed_comes_out_again(lines in proptest::collection::vec("[.a]{0,4}", 0..8)) {
            let text = |dots: bool| lines.iter().fold(String::new(), |text, line| {
                let dot = if dots && line.starts_with('.') { "." } else { "" };
                text + dot + line + "\r\n"
            });
            let mut received = Vec::new();
            unstuff(text(true).as_bytes(), &mut received);
            prop_assert_eq!(received, text(false).into_bytes());
        }
    }
}
