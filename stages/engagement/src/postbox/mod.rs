//! What comes back by mail: a small, strict SMTP or LMTP server for return paths and reports of complaints, and the sweep that
//! reads what it took.
//!
//! It is no mail server for anybody: an address is taken only when its tag shows that we made it for a send there is, or when it
//! is the one feedback loops report to. A mail is committed before it is answered 250, and read from there; what it says goes
//! into the ledger like every other fact, and the mail itself is dropped.

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

pub(crate) use self::reader::ReadMails;
pub use self::settings::{Protocol, Settings};
use self::{
    peers::Peers,
    session::{Server, Session},
};

/// How long sessions may still finish what they have begun when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// Starts listening, and answers where. Runs until the process stops.
///
/// # Errors
/// When the address cannot be had, or the certificate cannot be read.
pub async fn listen(deps: &Deps, settings: &Settings) -> io::Result<Option<SocketAddr>> {
    let Some(address) = settings.inbound_addr else { return Ok(None) };
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let server = Arc::new(Server {
        protocol: settings.inbound_protocol,
        hostname: settings.inbound_hostname.clone(),
        tls: tls::acceptor(settings)?,
        store: store::Store::new(deps, settings.inbound_feedback_address.as_deref()),
    });
    tracing::info!(stage = "engagement", address = %bound, protocol = ?settings.inbound_protocol, "taking mail that comes back");
    let room = Arc::new(Semaphore::new(settings.inbound_connections.max(1)));
    // Behind a mail server of one's own all connections are that server's.
    let each = if settings.inbound_protocol == Protocol::Lmtp { 0 } else { settings.inbound_connections_per_address };
    tokio::spawn(accept(listener, server, room, Peers::new(each), deps.shutdown.clone()));
    Ok(Some(bound))
}

async fn accept(
    listener: TcpListener,
    server: Arc<Server>,
    room: Arc<Semaphore>,
    peers: Arc<Peers>,
    shutdown: CancellationToken,
) {
    let sessions = TaskTracker::new();
    loop {
        // First room, then a connection: who finds none waits in the system's queue, or goes to another host.
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = room.clone().acquire_owned() => permit,
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
            // As far as the system takes it at once: nobody waits for this client.
            let refusal = stream.write_all(b"421 4.7.0 Too many connections from your address\r\n");
            let _ = tokio::time::timeout(Duration::from_millis(100), refusal).await;
            continue;
        };
        let (server, shutdown) = (server.clone(), shutdown.clone());
        sessions.spawn(async move {
            let (_permit, _counted) = (permit, counted);
            // Whatever ends a session early is the other side's to try again.
            let _ = Session::run(server, stream, shutdown).await;
        });
    }
    drop(listener);
    sessions.close();
    let _ = tokio::time::timeout(GRACE, sessions.wait()).await;
}
