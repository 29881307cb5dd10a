//! The connection pool: bounded, last in first out. A connection in an unknown state is never reused.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use runtime::{Counter, outbound::tls};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;

use super::{
    Cause, Envelope, Phase, Reply, SmtpFailure, SmtpMessage, SmtpSettings, SmtpSettingsError,
    connection::SmtpConnection,
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
    idle: Mutex<Vec<SmtpConnection>>,
    /// One permit for each connection in use. A new connection is made only when none is idle, so that there are never
    /// more than `max_connections` in all.
    slots: Arc<Semaphore>,
    /// Cleared when the relay offers CHUNKING without knowing BDAT.
    chunking: AtomicBool,
}

/// How many connections there are, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCounts {
    /// Taken by a caller, connecting or closing.
    pub in_use: usize,
    /// Open and waiting for work.
    pub idle: usize,
}

impl Pool {
    /// A pool without connections; they are made when needed. Must be called inside a Tokio runtime: a small task closes
    /// connections that were idle too long and ends with the pool.
    pub fn new(settings: SmtpSettings) -> Result<Self, SmtpSettingsError> {
        settings.check()?;
        let shared = Arc::new(SharedPool {
            tls: TlsConnector::from(Arc::new(tls::config(settings.ca_file.as_deref())?)),
            idle: Mutex::new(Vec::new()),
            slots: Arc::new(Semaphore::new(settings.max_connections)),
            chunking: AtomicBool::new(true),
            settings: Arc::new(settings),
        });
        tokio::spawn(retire_idle(Arc::downgrade(&shared), shared.settings.idle_timeout));
        Ok(Self { shared })
    }

    /// The relay's host name or address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.shared.settings.relay.host
    }

    /// How many connections there are now.
    #[must_use]
    pub fn counts(&self) -> PoolCounts {
        let in_use = self.shared.settings.max_connections - self.shared.slots.available_permits();
        PoolCounts { in_use, idle: self.shared.idle().len() }
    }

    /// Waits for a free connection, or opens one, to a server that takes this envelope.
    /// A failure is always [`super::Certainty::NotSent`].
    pub async fn take(&self, envelope: &Envelope) -> Result<PooledConnection, SmtpFailure> {
        // The semaphore is never closed.
        let acquired = self.shared.slots.clone().acquire_owned().await;
        let permit = acquired.map_err(|_| SmtpFailure::not_sent(Phase::Connect, Cause::Closed))?;
        let connection = match self.shared.take_idle() {
            Some(connection) => connection,
            None => self.shared.connect().await?,
        };
        let checked = connection.check(envelope);
        let taken = PooledConnection { pool: self.shared.clone(), connection: Some(connection), permit: Some(permit) };
        checked.map(|()| taken)
    }

    /// Opens a new connection up to the point where a transaction could begin, and closes it.
    /// A failure is always [`super::Certainty::NotSent`].
    pub async fn ping(&self) -> Result<(), SmtpFailure> {
        let mut connection = SmtpConnection::connect(&self.shared.settings, &self.shared.tls).await?;
        let answered = connection.noop().await;
        connection.quit().await;
        answered
    }

    /// Closes idle connections with QUIT. Connections in use are closed as they come back when the pool is dropped.
    pub async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.shared.idle());
        futures::future::join_all(idle.into_iter().map(SmtpConnection::quit)).await;
    }
}

#[cfg(test)]
impl Pool {
    /// Makes the idle connections look as if their servers had been silent for some time.
    pub(super) fn age_idle(&self) {
        self.shared.idle().iter_mut().for_each(SmtpConnection::age);
    }
}

impl SharedPool {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SmtpConnection>> {
        // The lock spans single Vec operations only, which leave the list consistent even if one panics.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection that the server has not given up.
    fn take_idle(&self) -> Option<SmtpConnection> {
        loop {
            let mut connection = self.idle().pop()?;
            // The last one is the most recently used: if it is too old, all are.
            if connection.idle_time() >= self.settings.idle_timeout {
                tokio::spawn(connection.quit());
                return None;
            }
            if !connection.is_gone() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<SmtpConnection, SmtpFailure> {
        let connected = SmtpConnection::connect(&self.settings, &self.tls).await;
        let outcome = connected.as_ref().map_or_else(|failure| failure.phase.as_str(), |_| "open");
        Counter::SmtpConnectionsTotal.add(1, [("outcome", outcome), ("route", self.settings.route)]);
        connected
    }

    /// Opens a connection for a message that must begin by then.
    async fn connect_by(&self, begin_by: Instant) -> Result<SmtpConnection, SmtpFailure> {
        let connected = tokio::time::timeout_at(begin_by.into(), self.connect()).await;
        connected.unwrap_or_else(|_| Err(SmtpFailure::not_sent(Phase::Connect, Cause::FenceTooOld)))
    }

    /// Returns a reusable connection to the pool, closes one that has sent enough messages, and drops any other.
    fn give_back(&self, connection: SmtpConnection, permit: OwnedSemaphorePermit) {
        if connection.is_reusable() {
            self.idle().push(connection);
            // The permit is released after the connection is back, so that the next caller finds it.
            drop(permit);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                connection.quit().await;
                drop(permit);
            });
        }
    }
}

async fn retire_idle(shared: Weak<SharedPool>, idle_timeout: std::time::Duration) {
    let mut tick = tokio::time::interval((idle_timeout / 4).max(std::time::Duration::from_millis(50)));
    loop {
        tick.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let expired: Vec<SmtpConnection> =
            shared.idle().extract_if(.., |connection| connection.idle_time() >= idle_timeout).collect();
        drop(shared);
        futures::future::join_all(expired.into_iter().map(SmtpConnection::quit)).await;
    }
}

/// A connection that waits for its caller's message, and its permit. Dropping it gives the connection back.
pub struct PooledConnection {
    pool: Arc<SharedPool>,
    /// `None` while a message is sent: a connection in an unknown state does not come back.
    connection: Option<SmtpConnection>,
    permit: Option<OwnedSemaphorePermit>,
}

impl std::fmt::Debug for PooledConnection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PooledConnection(..)")
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let (Some(connection), Some(permit)) = (self.connection.take(), self.permit.take()) {
            self.pool.give_back(connection, permit);
        }
    }
}

impl PooledConnection {
    /// Sends a message: `header` (further header fields such as DKIM-Signature, each complete with CRLF), then the message.
    /// If `begin_by` passes before the transaction begins, nothing is sent: the fence is too old, and another worker may already treat
    /// the send as unknown. A connection that the server has given up is replaced by a new one, once, if none of the message has left.
    ///
    /// The connection is free for others when `self` is dropped, not before. The server's final reply often names the queue id.
    /// A failure is [`super::Certainty::Unknown`] as soon as octets of the message may have left without a final answer.
    pub async fn send(
        &mut self,
        envelope: &Envelope,
        header: &str,
        message: &SmtpMessage,
        begin_by: Instant,
    ) -> Result<Reply, SmtpFailure> {
        let pool = self.pool.clone();
        let taken = self.connection.take().and_then(|mut taken| (!taken.is_gone()).then_some(taken));
        let mut connection = match taken {
            Some(connection) => connection,
            None => pool.connect_by(begin_by).await?,
        };
        if Instant::now() > begin_by {
            self.connection = Some(connection);
            return Err(SmtpFailure::not_sent(Phase::Mail, Cause::FenceTooOld));
        }
        let chunking = || pool.chunking.load(Ordering::Relaxed);
        let is_used = connection.messages > 0;
        let mut sent = connection.send(envelope, header.as_bytes(), message, chunking()).await;
        if is_used && sent.as_ref().is_err_and(SmtpFailure::is_stale) {
            connection = pool.connect_by(begin_by).await?;
            sent = connection.send(envelope, header.as_bytes(), message, chunking()).await;
        }
        self.connection = Some(connection);
        if matches!(sent, Err(SmtpFailure { cause: Cause::ChunkingRefused, .. }))
            && pool.chunking.swap(false, Ordering::Relaxed)
        {
            tracing::warn!("the relay offers CHUNKING and does not know BDAT; it gets DATA from now on");
        }
        sent
    }
}
