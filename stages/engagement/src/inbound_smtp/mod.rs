//! The inbound SMTP server: a small, strict SMTP or LMTP server for return paths and complaint reports, and the sweep that reads the
//! mail it stored.
//!
//! It accepts two kinds of address: a return path whose signed tag names an existing send, and the address that feedback loops report
//! to. A mail is committed before it is answered 250, and read later: its fact goes into the ledger like every other fact, and the mail
//! itself is deleted.

mod command;
mod data;
mod lines;
mod peers;
mod reader;
mod session;
mod settings;
mod store;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use runner::Deps;
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::reader::ReadInboundMail;
pub use self::settings::{InboundProtocol, InboundSmtpSettings};
use self::{
    peers::Peers,
    session::{InboundServer, SmtpSession},
};

/// How long open sessions may take to finish when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// Starts the server, and answers its address. It runs until the process stops.
///
/// # Errors
/// When the address cannot be bound, or the certificate cannot be read.
pub async fn listen(deps: &Deps, settings: &InboundSmtpSettings) -> io::Result<Option<SocketAddr>> {
    let Some(address) = settings.inbound_addr else { return Ok(None) };
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let server = Arc::new(InboundServer {
        protocol: settings.inbound_protocol,
        hostname: settings.inbound_hostname.clone(),
        tls: tls::acceptor(settings)?,
        store: store::Store::new(deps, settings.inbound_feedback_address.as_deref()),
    });
    tracing::info!(stage = "engagement", address = %bound, protocol = ?settings.inbound_protocol, "inbound SMTP server listens");
    let permits = Arc::new(Semaphore::new(settings.inbound_connections.max(1)));
    // Behind the operator's own mail server, all connections come from that server.
    let each =
        if settings.inbound_protocol == InboundProtocol::Lmtp { 0 } else { settings.inbound_connections_per_address };
    tokio::spawn(accept(listener, server, permits, Peers::new(each), deps.shutdown.clone()));
    Ok(Some(bound))
}

async fn accept(
    listener: TcpListener,
    server: Arc<InboundServer>,
    permits: Arc<Semaphore>,
    peers: Arc<Peers>,
    shutdown: CancellationToken,
) {
    let sessions = TaskTracker::new();
    loop {
        // First a permit, then a connection: a client without one waits in the system's queue, or tries another host.
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = permits.clone().acquire_owned() => permit,
        };
        let Ok(permit) = permit else { break };
        let (mut stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Out of files, or a client that is gone already.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Some(counted) = peers.count(peer.ip()) else {
            // Written only as far as the socket accepts it at once: the server does not wait for this client.
            let refusal = stream.write_all(b"421 4.7.0 Too many connections from your address\r\n");
            let _ = tokio::time::timeout(Duration::from_millis(100), refusal).await;
            continue;
        };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        sessions.spawn(async move {
            let (_permit, _counted) = (permit, counted);
            // If a session ends early, the client tries again.
            let _ = SmtpSession::run(server, stream, shutdown).await;
        });
    }
    drop(listener);
    sessions.close();
    let _ = tokio::time::timeout(GRACE, sessions.wait()).await;
}
