//! The connector: decides after resolution, for the exact address to dial, whether it may be dialled.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hickory_resolver::TokioResolver;
use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;
use tower_service::Service;

use super::{OwnListeners, dns, error::OutboundError, target::TargetRules};

/// The most addresses of one name that are tried.
const DIALS_MAX: usize = 4;
/// The share of the timeout that one of several addresses may use: a dead address leaves time for the others.
const SHARE_OF_FIRST: u32 = 2;

/// Opens connections for the client's pool.
#[derive(Clone)]
pub(super) struct Connector(pub(super) Arc<ConnectorSettings>);

/// The settings and tools to open a connection.
pub(super) struct ConnectorSettings {
    pub(super) rules: TargetRules,
    pub(super) own_listeners: OwnListeners,
    pub(super) resolver: TokioResolver,
    pub(super) tls: TlsConnector,
    /// Timeout for DNS, TCP and TLS together.
    pub(super) connect_timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ProvenConnection>;
    type Error = OutboundError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = Arc::clone(&self.0);
        Box::pin(async move {
            let connected = tokio::time::timeout(connector.connect_timeout, connector.connect(&uri)).await;
            let stream = connected.unwrap_or(Err(OutboundError::TimedOut))?;
            Ok(TokioIo::new(ProvenConnection { stream, proven: Proven::default() }))
        })
    }
}

impl ConnectorSettings {
    async fn connect(&self, uri: &Uri) -> Result<OutboundStream, OutboundError> {
        let is_plain = uri.scheme_str() != Some("https");
        let host = uri.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let port = uri.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
        let found = match host.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            Err(_) => dns::host_addresses(&self.resolver, host).await?,
        };
        let targets: Vec<SocketAddr> = found
            .into_iter()
            .map(|address| SocketAddr::new(address, port))
            .filter(|target| self.permits(*target, is_plain))
            .take(DIALS_MAX)
            .collect();
        if targets.is_empty() {
            return Err(OutboundError::AddressNotAllowed);
        }
        let stream = dial(&targets, self.connect_timeout).await?;
        if is_plain {
            return Ok(Either::Left(stream));
        }
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned()).map_err(|_| OutboundError::TlsFailed)?;
        let stream = self.tls.connect(name, stream).await.map_err(|_| OutboundError::TlsFailed)?;
        Ok(Either::Right(Box::new(stream)))
    }

    fn permits(&self, target: SocketAddr, is_plain: bool) -> bool {
        self.rules.permits(target.ip(), is_plain)
            && (super::address::is_in(&self.rules.allowed, target.ip()) || !super::address::is_own(target.ip()))
            && !self.own_listeners.answer_at(target)
    }
}

/// Dials checked addresses, one after the other.
async fn dial(targets: &[SocketAddr], limit: Duration) -> Result<TcpStream, OutboundError> {
    let mut last = OutboundError::ConnectFailed;
    for (index, target) in targets.iter().enumerate() {
        let share = if index + 1 < targets.len() { limit / SHARE_OF_FIRST } else { limit };
        match tokio::time::timeout(share, TcpStream::connect(target)).await {
            Ok(Ok(stream)) => {
                // Without it, small requests wait for delayed acknowledgements of 40 ms.
                stream.set_nodelay(true).map_err(|_| OutboundError::ConnectFailed)?;
                return Ok(stream);
            }
            Ok(Err(_)) => last = OutboundError::ConnectFailed,
            Err(_) => last = OutboundError::TimedOut,
        }
    }
    Err(last)
}

/// True if a connection has carried a response before. It is attached to responses and errors, so that the client can distinguish a
/// connection that was closed while idle from a host that closes on every request.
#[derive(Debug, Clone, Default)]
pub(super) struct Proven(Arc<AtomicBool>);

impl Proven {
    pub(super) fn prove(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_proven(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// In clear or through TLS.
type OutboundStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection, and whether it is proven.
pub(super) struct ProvenConnection {
    stream: OutboundStream,
    proven: Proven,
}

impl Connection for ProvenConnection {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.proven.clone())
    }
}

impl AsyncRead for ProvenConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ProvenConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
