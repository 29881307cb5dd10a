//! Serves one connection of a client: limits its idle time, answers 408 when headers do not arrive, and closes it so that the last answer
//! arrives.
//!
//! hyper closes an HTTP/1 connection with slow headers without an answer, and an idle one as early; it has no limit before the first line
//! and for HTTP/2. So the idle time is measured here, for all of them: the time without a request in progress.

mod frames;
mod head;

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{Router, extract::Request, response::Response};
use http::StatusCode;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

use self::{frames::WrittenFrames, head::HeadChecker};
use crate::pipeline::{error::ApiError, peer::Peer};

/// How long, and how much, is still read of a client that goes on sending after its last answer: closing at once would reset the
/// connection, and the answer with it.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long a connection may stay open between two requests: longer than load balancers keep theirs, so that they close it and
/// never send a request into a connection that is being closed here.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(75);
const HTTP2_STREAMS_MAX: u32 = 100;
/// The longest head of a request, in bytes; more is answered 431.
const HEAD_MAX_BYTES: usize = 64 * 1024;
const HTTP2_HEAD_MAX_BYTES: u32 = 64 * 1024;
/// How much a client may send over HTTP/2 before it is read: as much as over HTTP/1.
const HTTP2_UNREAD_MAX_BYTES: u32 = 64 * 1024;
/// Why a request head is refused.
const MALFORMED_HEAD: &str =
    "a request has Content-Length or Transfer-Encoding, not both, and no control characters in its line or headers";

/// Serves one connection until it is done, has been idle for `idle_timeout`, or we stop.
pub(crate) async fn serve_connection(
    stream: TcpStream,
    router: Router,
    idle_timeout: Duration,
    shutdown: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let peer = Peer::of(&stream);
    let stream = Arc::new(stream);
    let activity = Arc::new(ConnectionActivity::new());
    let shared =
        SharedStream { stream: Arc::clone(&stream), activity: Arc::clone(&activity), heads: HeadChecker::default() };
    let service = ConnectionService { router, peer, activity: Arc::clone(&activity) };
    let timed_out = run_http(shared, service, idle_timeout, &activity, &shutdown).await;
    // hyper has dropped its reference.
    let Some(mut stream) = Arc::into_inner(stream) else { return };
    let last = match *activity.state() {
        ActivityState { is_refused: true, .. } => Some((StatusCode::BAD_REQUEST, "malformed_request", MALFORMED_HEAD)),
        ActivityState { head_since: Some(_), .. } if timed_out => {
            Some((StatusCode::REQUEST_TIMEOUT, "request_timeout", "the headers did not arrive in time"))
        }
        _ => None,
    };
    if let Some((status, code, detail)) = last {
        let answer = last_answer(&ApiError::new(status, code).detail(detail));
        let _ = tokio::time::timeout(LINGER_MAX, stream.write_all(&answer)).await;
    }
    linger(stream).await;
}

/// Runs the HTTP protocol. Returns true if the client was too slow.
async fn run_http(
    shared: SharedStream,
    service: ConnectionService,
    idle_timeout: Duration,
    activity: &ConnectionActivity,
    shutdown: &CancellationToken,
) -> bool {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Its own limit for headers would close idle connections, too.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        // A client that has sent its request and closed its side still gets the answer.
        .half_close(true)
        .max_buf_size(HEAD_MAX_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(idle_timeout))
        .max_header_list_size(HTTP2_HEAD_MAX_BYTES)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_UNREAD_MAX_BYTES)
        .initial_connection_window_size(HTTP2_UNREAD_MAX_BYTES);
    let connection = builder.serve_connection(TokioIo::new(shared), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = activity.wait_for_silence(idle_timeout) => return true,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                result = connection.as_mut() => result,
                () = activity.wait_for_silence(idle_timeout) => return false,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "connection ended");
    }
    false
}

/// An answer that is written without hyper, after which the connection is closed.
fn last_answer(error: &ApiError) -> Vec<u8> {
    let body = error.body();
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        error.status,
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Closes our side and reads what the client still sends, for a moment.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let read_rest = async {
        let mut discarded = vec![0; 16 * 1024];
        let mut received = 0;
        while received < LINGER_MAX_BYTES {
            match stream.read(&mut discarded).await {
                Ok(0) | Err(_) => return,
                Ok(count) => received += count,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER_MAX, read_rest).await;
}

/// The activity of a connection: requests in progress and idle time.
#[derive(Debug)]
struct ConnectionActivity(Mutex<ActivityState>);

#[derive(Debug)]
struct ActivityState {
    in_progress: usize,
    /// Since when no request is in progress and nothing of an answer is written.
    quiet_since: Instant,
    /// When the first byte of an incomplete request head arrived.
    head_since: Option<Instant>,
    /// The protocol of the client, once it has sent a byte.
    protocol: Option<Protocol>,
    /// What is written over HTTP/2.
    frames: WrittenFrames,
    /// True if the client has sent a request.
    has_requests: bool,
    /// True if a request head was refused before hyper saw it: hyper reads the end of the stream.
    is_refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

impl ConnectionActivity {
    fn new() -> Self {
        Self(Mutex::new(ActivityState {
            in_progress: 0,
            quiet_since: Instant::now(),
            head_since: None,
            protocol: None,
            frames: WrittenFrames::default(),
            has_requests: false,
            is_refused: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> RequestInProgress {
        let mut state = self.state();
        state.in_progress += 1;
        state.has_requests = true;
        state.head_since = None;
        drop(state);
        RequestInProgress(Arc::clone(self))
    }

    fn received(&self, bytes: &[u8]) {
        let mut state = self.state();
        if bytes.is_empty() {
            return;
        }
        // HTTP/2 begins with a preface that is no request; then frames come at any time.
        let protocol = *state.protocol.get_or_insert(match bytes {
            [b'P'] | [b'P', b'R'] | [b'P', b'R', b'I', ..] => Protocol::Http2,
            _ => Protocol::Http1,
        });
        if state.in_progress == 0 && protocol == Protocol::Http1 {
            state.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// A client that only has its pings answered is idle.
    fn sent(&self, bytes: &[u8]) {
        let mut state = self.state();
        if state.protocol != Some(Protocol::Http2) || state.frames.carry_data(bytes) {
            state.quiet_since = Instant::now();
        }
    }

    /// How long the client may still be idle; `None` while a request is in progress.
    fn silence_left(&self, idle_timeout: Duration) -> Option<Duration> {
        let state = self.state();
        let allowed = match (state.in_progress, state.head_since) {
            (0, Some(begun)) => begun + idle_timeout,
            (0, None) if state.has_requests => state.quiet_since + KEEP_ALIVE_MAX.max(idle_timeout),
            (0, None) => state.quiet_since + idle_timeout,
            _ => return None,
        };
        Some(allowed.saturating_duration_since(Instant::now()))
    }

    /// Returns when the client has been idle for too long.
    async fn wait_for_silence(&self, idle_timeout: Duration) {
        loop {
            match self.silence_left(idle_timeout) {
                Some(Duration::ZERO) => return,
                // A head may begin at any time: check again at least as often as one may take.
                Some(left) => tokio::time::sleep(left.min(idle_timeout)).await,
                None => tokio::time::sleep(idle_timeout).await,
            }
        }
    }
}

/// A request in progress, until it is dropped.
struct RequestInProgress(Arc<ConnectionActivity>);

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_progress -= 1;
        state.quiet_since = Instant::now();
    }
}

/// The router, for the requests of one connection.
#[derive(Clone)]
struct ConnectionService {
    router: Router,
    peer: Peer,
    activity: Arc<ConnectionActivity>,
}

impl Service<http::Request<Incoming>> for ConnectionService {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Request>::poll_ready(&mut self.router, context)
    }

    fn call(&mut self, mut request: http::Request<Incoming>) -> Self::Future {
        let in_progress = self.activity.begin();
        request.extensions_mut().insert(self.peer);
        let answer = self.router.call(request.map(axum::body::Body::new));
        Box::pin(async move {
            let _in_progress = in_progress;
            answer.await
        })
    }
}

/// The TCP stream, shared between hyper and the answers that are written without it.
struct SharedStream {
    stream: Arc<TcpStream>,
    activity: Arc<ConnectionActivity>,
    heads: HeadChecker,
}

impl AsyncRead for SharedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.activity.state().is_refused {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let before = buffer.filled().len();
            match self.stream.try_read_buf(buffer) {
                Ok(_) => {
                    if let Err(begun) = self.heads.follow(&buffer.filled()[before..]) {
                        buffer.set_filled(before + begun);
                        self.activity.state().is_refused = true;
                    }
                    self.activity.received(&buffer.filled()[before..]);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write_vectored(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => {
                    let mut left = *written.as_ref().unwrap_or(&0);
                    for piece in bytes {
                        let count = left.min(piece.len());
                        self.activity.sent(&piece[..count]);
                        left -= count;
                    }
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// [`linger`] closes the stream when hyper has dropped it.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
