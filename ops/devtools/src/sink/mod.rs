//! A mail sink: an SMTP server that takes every mail, counts it, shows it, and fails on request.
//!
//! It is the relay of the development system and of the tests. It delivers nothing. Counting costs a few dozen
//! bytes per address, so a million mails fit; only the newest mails are kept whole (see [`KeptMails`]).
//!
//! # Scripted answers
//!
//! ## By address
//!
//! The local part of a recipient asks for the answer it gets, on any domain:
//!
//! | local part | what happens |
//! |---|---|
//! | `defer-<4xx>`, `defer-<4xx>-<x.y.z>` | temporary failure, each time |
//! | `reject-<5xx>`, `reject-<5xx>-<x.y.z>` | permanent failure, each time |
//! | `defer-once`, `defer-twice` | `451 4.3.0` to the first attempt (the first two), then accepted |
//! | `greylist` | `450 4.7.1` to the first attempt, then accepted |
//! | `tarpit-3s`, `tarpit-200ms` | every answer from this recipient to the end of the transaction comes that late |
//! | `slow-<stage>-2s` | the answer at that stage comes that late |
//! | `drop-before-dot` | the connection ends when the body begins; nothing is stored |
//! | `drop-at-<stage>` | the connection ends instead of the answer; nothing is stored (at `dot`: after the whole body was read) |
//! | `drop-after-dot` | the mail is stored, then the connection ends instead of the `250` |
//!
//! The first four answer `RCPT`; `-at-data` or `-at-dot` behind them moves the answer to that stage (`reject-552-at-dot`).
//! Stages are `mail`, `rcpt`, `data` and `dot`. The same local parts in the *sender's* address act at `MAIL`
//! (`reject-550-at-mail`). Behind the script a `+tag` or digits may follow: `greylist-0042`, `reject-550+news`.
//! Reply `421` also ends the connection.
//!
//! ## By rules
//!
//! A JSON list, from a file at start ([`SinkOptions::rules`]) or by `PUT /rules`. The first rule that fits answers;
//! rules come before the scripts of addresses.
//!
//! ```json
//! [
//!   {"match": {"address": "ann@example.com"}, "stage": "rcpt", "reply": "550 5.1.1 No such user"},
//!   {"match": {"domain": "slow.example"}, "stage": "dot", "delay_ms": 2000},
//!   {"match": {"glob": "user-*@example.com"}, "stage": "dot", "action": "drop_after_accept", "times": 1},
//!   {"match": "all", "stage": "data", "reply": "421 4.3.2 Going down", "delay_ms": 500}
//! ]
//! ```
//!
//! `stage`: `mail` (the address is the sender's there), `rcpt`, `data`, `body` (after `354`, when the body begins) or
//! `dot`; at the last three any recipient may fit. Each rule has one of `reply` (4xx or 5xx), `action` (`drop`,
//! `drop_after_accept`, the second at `dot` only) and `delay_ms`, or a delay with one of the others. `times`: only
//! for the first so many attempts *of each address*. `glob` knows `*` and `?`.
//!
//! # Over HTTP
//!
//! | request | answer |
//! |---|---|
//! | `GET /` and `GET /inbox/{id}` | pages for people |
//! | `GET /stats` | [`Stats`] |
//! | `GET /count?address=` | [`Count`] |
//! | `POST /counts?not=1` | a list of addresses in; `{counts: [Count], matching, checked}`; with `not`, only those whose count is another |
//! | `GET /messages?limit=&to=` | `{messages: […]}`, newest first, of the kept ones |
//! | `GET /messages/{id}`, `/messages/{id}/source`, `/messages/{id}/html` | one mail: parsed as JSON, as received, its HTML part |
//! | `DELETE /messages` | forgets everything counted and kept |
//! | `GET /rules`, `PUT /rules` | the rules in force; an empty list removes them |
//! | `GET /wait?accepted=N&timeout_ms=`, `GET /wait?address=&count=&timeout_ms=` | answers when it is so, or at the time-out: `{reached, accepted}` |
//!
//! Times are microseconds since 1970, taken when a mail is accepted (before its `250` is sent).

mod answer;
mod http;
mod inbox;
mod message;
mod page;
mod rules;
mod script;
mod smtp;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use ::smtp::SmtpCredentials;

pub use inbox::{Count, Inbox, KeptMails, Stats};
pub use message::{Attachment, HeaderField, Parsed, StoredMessage};
pub use rules::SinkRule;

/// How to start a sink.
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// Where to take mail; port 0 takes a free one.
    pub smtp_addr: SocketAddr,
    /// Where to answer questions; port 0 takes a free one.
    pub http_addr: SocketAddr,
    /// A file of rules, read at start.
    pub rules: Option<PathBuf>,
    /// Which mails are kept whole.
    pub keep: KeptMails,
    /// When set, `AUTH` is offered and required.
    pub credentials: Option<SmtpCredentials>,
    /// Largest mail in bytes, announced as `SIZE`.
    pub max_message_bytes: usize,
}

impl Default for SinkOptions {
    fn default() -> Self {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            smtp_addr: any_port,
            http_addr: any_port,
            rules: None,
            keep: KeptMails::default(),
            credentials: None,
            max_message_bytes: 32 * 1024 * 1024,
        }
    }
}

/// A running sink. It takes and answers nothing more when this is dropped.
#[derive(Debug)]
pub struct Sink {
    smtp_addr: SocketAddr,
    http_addr: SocketAddr,
    inbox: Arc<Inbox>,
    tasks: Vec<JoinHandle<()>>,
}

impl Sink {
    /// Listens on both addresses and returns when both take connections.
    pub async fn start(options: SinkOptions) -> anyhow::Result<Self> {
        let inbox = Arc::new(Inbox::new(options.keep));
        if let Some(path) = options.rules {
            let text = tokio::fs::read_to_string(&path).await.with_context(|| path.display().to_string())?;
            inbox.set_rules(SinkRule::parse_list(&text).with_context(|| path.display().to_string())?);
        }
        let (smtp, smtp_addr) = listen(options.smtp_addr).await?;
        let (http, http_addr) = listen(options.http_addr).await?;
        let settings = smtp::server_settings(options.credentials, options.max_message_bytes);
        let handler = smtp::SinkMailHandler(Arc::clone(&inbox));
        let smtp = ::smtp::server::serve(smtp, settings, handler, CancellationToken::new());
        let http = http::serve(http, Arc::clone(&inbox));
        Ok(Self { smtp_addr, http_addr, inbox, tasks: vec![tokio::spawn(smtp), tokio::spawn(http)] })
    }

    /// Where it takes mail.
    pub fn smtp_addr(&self) -> SocketAddr {
        self.smtp_addr
    }

    /// Where it answers questions.
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// `smtp://…`, for a sender's settings.
    pub fn smtp_url(&self) -> String {
        format!("smtp://{}", self.smtp_addr)
    }

    /// `http://…`, the inbox page.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.http_addr)
    }

    /// What arrived, and what to answer.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Ends all SMTP connections and frees both ports.
    pub async fn stop(mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            // Cancelled is what we asked for.
            let _ = task.await;
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}
