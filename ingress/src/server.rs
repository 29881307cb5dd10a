//! The listener, and what runs beside it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use runtime::Peers;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::domains,
    bus,
    pipeline::{auth, connection::serve_connection},
    routes,
    state::Ingress,
};

/// Longest wait for requests and calls in progress and announcements at shutdown.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// After a failed accept (out of file descriptors, usually), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running ingress.
#[derive(Debug)]
pub struct Serving {
    /// Where it listens.
    pub address: SocketAddr,
    finished: tokio::task::JoinHandle<()>,
}

impl Serving {
    /// Waits until all requests in progress are answered, after the shutdown token was cancelled.
    pub async fn finished(self) {
        if self.finished.await.is_err() {
            tracing::error!("the listener broke off");
        }
    }
}

/// Binds and serves until `shutdown`.
///
/// # Errors
/// When the address is taken.
pub async fn serve(ingress: Arc<Ingress>, shutdown: CancellationToken) -> std::io::Result<Serving> {
    let listener = TcpListener::bind(ingress.settings.http_addr).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "ingress listens");
    tokio::spawn(auth::sweep::run(ingress.pool.clone(), shutdown.clone()));
    let (notified, until) = (Arc::clone(&ingress), shutdown.clone());
    tokio::spawn(async move { notified.reply_inbox.listen(&notified.bus, until).await });
    let (stored, until) = (Arc::clone(&ingress), shutdown.clone());
    tokio::spawn(async move { stored.hooks.carry(stored.bus.clone(), until).await });
    ingress.tasks.spawn(bus::serve(Arc::clone(&ingress), shutdown.clone()));
    bus::intake::start(&ingress, shutdown.clone());
    tokio::spawn(domains::recheck::run(Arc::clone(&ingress), shutdown.clone()));
    let finished = tokio::spawn(accept_until(listener, ingress, shutdown));
    Ok(Serving { address, finished })
}

async fn accept_until(listener: TcpListener, ingress: Arc<Ingress>, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(ingress.settings.http_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let clients = Peers::new(ingress.settings.http_connections_per_address);
    // Behind a proxy of the operator are many clients.
    let proxies = Peers::new(0);
    let header_timeout = ingress.settings.http_body_timeout;
    let router = routes::router(Arc::clone(&ingress));
    while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, address)) => {
                // Closed at once: one more would cost memory and file descriptors that open ones need.
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
                let address = address.ip().to_canonical();
                let is_proxy = ingress.settings.trusted_proxies.iter().any(|net| net.contains(&address));
                let Some(counted) = (if is_proxy { &proxies } else { &clients }).count(address) else { continue };
                let connection = serve_connection(stream, router.clone(), header_timeout, shutdown.clone());
                connections.spawn(async move {
                    let _held = (permit, counted);
                    connection.await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    ingress.tasks.close();
    let drained = async {
        connections.wait().await;
        ingress.tasks.wait().await;
        ingress.request_log.close().await;
    };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        tracing::warn!(connections = connections.len(), "stopped with requests in progress");
    }
}
