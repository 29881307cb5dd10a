//! An SMTP or LMTP server (RFC 5321, 1870, 2033, 2034, 2920, 3030, 3207, 4954, 6152, 6531). It reads commands and mail, keeps the limits of its
//! [`SmtpServerSettings`], and asks a [`MailHandler`] how each address and each mail is answered.
//!
//! Replies are written when nothing that arrived is left to handle, so one write answers a pipeline of commands.

mod answer;
mod command;
mod content;
mod session;
mod settings;
#[cfg(test)]
mod tests;
mod wire;

use std::{sync::Arc, time::Duration};

use runtime::Peers;
use tokio::{io::AsyncWriteExt, net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

pub use self::answer::{AfterAnswer, MailFault, MailHandler, ReceivedMail, SmtpAnswer};
pub use self::settings::{BareLineEnds, MailProtocol, SmtpServerSettings, tls_acceptor};

/// How long open sessions may take to finish when the process stops.
const GRACE: Duration = Duration::from_secs(10);

struct SmtpServer<H> {
    settings: SmtpServerSettings,
    handler: H,
    shutdown: CancellationToken,
}

/// Serves connections until `shutdown`, and then the sessions that are open for some seconds. Dropping the future ends all of them at once.
pub async fn serve<H: MailHandler>(
    listener: TcpListener,
    settings: SmtpServerSettings,
    handler: H,
    shutdown: CancellationToken,
) {
    let peers = Peers::new(settings.connections_per_client);
    let server = Arc::new(SmtpServer { settings, handler, shutdown });
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = server.shutdown.cancelled() => break,
            Some(_) = sessions.join_next() => continue,
            // Beyond the limit a client waits in the system's queue, or tries another host.
            accepted = listener.accept(), if sessions.len() < server.settings.connections => accepted,
        };
        let (mut stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: the next attempt would fail at once.
                tracing::warn!(%error, "the SMTP server cannot take a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(counted) = peers.count(peer.ip()) else {
            // Written only as far as the socket accepts it at once: the server does not wait for this client.
            let refusal = stream.write_all(b"421 4.7.0 Too many connections from your address\r\n");
            let _ = tokio::time::timeout(Duration::from_millis(100), refusal).await;
            continue;
        };
        server.handler.connected();
        let server = Arc::clone(&server);
        sessions.spawn(async move {
            let _counted = counted;
            // If a session ends early, the client tries again.
            let _ = tokio::time::timeout(server.settings.session_timeout, session::run(&server, stream)).await;
        });
    }
    drop(listener);
    let finished = async { while sessions.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, finished).await;
}
