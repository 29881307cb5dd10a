//! The SMTP server (RFC 5321, 2920, 6152, 1870, 2034, 6531, 4954): built to cost little, since it shares the
//! machine with what it measures.

mod auth;
mod command;
mod session;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::sink::inbox::Inbox;
pub use auth::Credentials;

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) max_message_bytes: usize,
}

/// Takes connections until it is dropped, and then ends them all.
pub(crate) async fn serve(listener: TcpListener, inbox: Arc<Inbox>, settings: Arc<Settings>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                inbox.count_connection();
                connections.spawn(session::run(stream, Arc::clone(&inbox), Arc::clone(&settings)));
            }
            Err(error) => {
                // Out of file descriptors, most likely: the next attempt would fail at once.
                tracing::warn!(%error, "cannot take a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
