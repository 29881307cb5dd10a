//! The connection pool: bounded, last in first out. A connection in an unknown state is never reused.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use runtime::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;

use super::{
    Cause, Envelope, Phase, Reply, SmtpFailure, SmtpMessage, SmtpSettings, SmtpSettingsError,
    connection::SmtpConnection, stream::tls_connector,
};

/// Connections to one relay. Cloning shares them.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<SharedPool>,
}

struct SharedPool {
    settings: Arc<SmtpSettings>,
    tls: TlsConnector,
    /// The most recently used connection is last: under light load the others become idle and are closed.
    idle: Mutex<Vec<(SmtpConnection, Instant)>>,
    /// One permit for each connection in use. A new connection is made only when none is idle, so that there are never
    /// more than `max_connections` in all.
    slots: Arc<Semaphore>,
}

/// How many connections there are, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// In a transaction, connecting or closing.
    pub in_use: usize,
    /// Open and waiting for work.
    pub idle: usize,
}

impl Pool {
    /// A pool without connections; they are made when needed. Must be called inside a Tokio runtime: a small task closes
    /// connections that were idle too long and ends with the pool.
    ///
    /// # Errors
    /// [`SmtpSettingsError`] if the settings are invalid.
    pub fn new(settings: SmtpSettings) -> Result<Self, SmtpSettingsError> {
        settings.check()?;
        let shared = Arc::new(SharedPool {
            tls: tls_connector(&settings)?,
            idle: Mutex::new(Vec::new()),
            slots: Arc::new(Semaphore::new(settings.max_connections)),
            settings: Arc::new(settings),
        });
        tokio::spawn(retire_idle(Arc::downgrade(&shared), shared.settings.idle_timeout));
        Ok(Self { shared })
    }

    /// The most transactions at once.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.settings.max_connections
    }

    /// How many connections there are now.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        PoolCounts { in_use: self.capacity() - self.shared.slots.available_permits(), idle: self.shared.idle().len() }
    }

    /// Waits for a free connection and brings a transaction to 354. Nothing of the message has left when this returns.
    ///
    /// A closed pooled connection is replaced by a new one, once: no part of the message has left yet.
    ///
    /// # Errors
    /// [`SmtpFailure`], always with certainty [`super::Certainty::NotSent`].
    pub async fn open(&self, envelope: &Envelope) -> Result<AtData, SmtpFailure> {
        // The semaphore is never closed.
        let permit = self
            .shared
            .slots
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| SmtpFailure::not_sent(Phase::Connect, Cause::Closed))?;
        if let Some(mut connection) = self.shared.take_idle() {
            match connection.open(envelope).await {
                Ok(()) => return Ok(AtData { lease: Lease::new(self, connection, permit) }),
                Err(failure) if failure.is_stale() => {}
                Err(failure) => {
                    Lease::new(self, connection, permit).give_back();
                    return Err(failure);
                }
            }
        }
        let connected = SmtpConnection::connect(&self.shared.settings, &self.shared.tls).await;
        let outcome = connected.as_ref().map_or_else(|failure| failure.phase.as_str(), |_| "open");
        Counter::SmtpConnectionsTotal.add(1, [("outcome", outcome)]);
        let mut connection = connected?;
        match connection.open(envelope).await {
            Ok(()) => Ok(AtData { lease: Lease::new(self, connection, permit) }),
            Err(failure) => {
                Lease::new(self, connection, permit).give_back();
                Err(failure)
            }
        }
    }

    /// Opens a new connection up to the point where a transaction could begin, and closes it.
    ///
    /// # Errors
    /// [`SmtpFailure`], always with certainty [`super::Certainty::NotSent`].
    pub async fn ping(&self) -> Result<(), SmtpFailure> {
        let mut connection = SmtpConnection::connect(&self.shared.settings, &self.shared.tls).await?;
        let answered = connection.noop().await;
        connection.quit().await;
        answered
    }

    /// Closes idle connections with QUIT. Connections in use are closed as they come back when the pool is dropped.
    pub async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.shared.idle());
        futures::future::join_all(idle.into_iter().map(|(connection, _)| connection.quit())).await;
    }
}

impl SharedPool {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(SmtpConnection, Instant)>> {
        // The lock spans single Vec operations only, which leave the list consistent even if one panics.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_idle(&self) -> Option<SmtpConnection> {
        let mut idle = self.idle();
        let (connection, since) = idle.pop()?;
        drop(idle);
        // The last one is the most recently used: if it is too old, all are.
        if since.elapsed() >= self.settings.idle_timeout {
            tokio::spawn(connection.quit());
            return None;
        }
        Some(connection)
    }

    fn take_expired(&self) -> Vec<(SmtpConnection, Instant)> {
        let limit = self.settings.idle_timeout;
        self.idle().extract_if(.., |(_, since)| since.elapsed() >= limit).collect()
    }
}

async fn retire_idle(shared: Weak<SharedPool>, idle_timeout: std::time::Duration) {
    let mut tick = tokio::time::interval((idle_timeout / 4).max(std::time::Duration::from_millis(50)));
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let expired = shared.take_expired();
        drop(shared);
        futures::future::join_all(expired.into_iter().map(|(connection, _)| connection.quit())).await;
    }
}

/// A connection in use, with its permit.
struct Lease {
    pool: Arc<SharedPool>,
    connection: SmtpConnection,
    permit: OwnedSemaphorePermit,
}

impl Lease {
    fn new(pool: &Pool, connection: SmtpConnection, permit: OwnedSemaphorePermit) -> Self {
        Self { pool: pool.shared.clone(), connection, permit }
    }

    /// Returns a reusable connection to the pool, closes one that has sent enough messages, and drops any other.
    fn give_back(self) {
        let Self { pool, connection, permit } = self;
        if connection.is_reusable() {
            pool.idle().push((connection, Instant::now()));
            // The permit is released after the connection is back, so that the next caller finds it.
            drop(permit);
        } else {
            tokio::spawn(async move {
                connection.quit().await;
                drop(permit);
            });
        }
    }
}

/// A transaction at 354: the server waits for the body. Dropping it drops the connection; the body is then never sent.
pub struct AtData {
    lease: Lease,
}

impl std::fmt::Debug for AtData {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("AtData(..)")
    }
}

/// The server accepted the message.
#[derive(Debug, Clone)]
pub struct AcceptedMessage {
    /// The server's final reply; its text often names the queue id.
    pub reply: Reply,
}

impl AtData {
    /// Sends the message: `header` (further header fields such as DKIM-Signature, each complete with CRLF), then the
    /// message. If `begin_by` has passed, nothing is written and the connection is dropped: the fence is too old, and
    /// another worker may already treat the send as unknown.
    ///
    /// # Errors
    /// [`SmtpFailure`]; [`super::Certainty::Unknown`] as soon as octets of the body may have left without a final answer.
    pub async fn send(
        mut self,
        header: &str,
        message: &SmtpMessage,
        begin_by: Instant,
    ) -> Result<AcceptedMessage, SmtpFailure> {
        if Instant::now() > begin_by {
            return Err(SmtpFailure::not_sent(Phase::Body, Cause::FenceTooOld));
        }
        let sent = self.lease.connection.send(header.as_bytes(), message).await;
        self.lease.give_back();
        sent.map(|reply| AcceptedMessage { reply })
    }

    /// Drops the connection without sending the body: SMTP has no other way back from 354.
    pub fn abandon(self) {}
}
