//! One connection of a client: bounded in silence, answered 408 when its headers do not come, and closed so that the last answer
//! arrives.
//!
//! hyper ends an HTTP/1 connection whose headers are slow, without a word, and an idle one as early; what comes before the first
//! line, and HTTP/2, has no limit there. So silence is measured here, for all of them: the time in which no request is in hand.

mod head;

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{Router, extract::Request, response::Response};
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

use self::head::Heads;
use crate::pipeline::{error::ApiError, peer::Peer};

/// How long, and how much, is still read of a client that goes on sending after its last answer: closing at once would reset the
/// connection, and the answer with it.
const LINGER_MAX: Duration = Duration::from_secs(2);
const LINGER_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long a connection may stay open between two requests: longer than load balancers keep theirs, so that they close it and
/// never send a request into a connection that we are closing.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(75);
const HTTP2_STREAMS_MAX: u32 = 100;
/// The longest head of a request, in bytes; more is answered 431.
const HEAD_MAX_BYTES: usize = 64 * 1024;
const HTTP2_HEAD_MAX_BYTES: u32 = 64 * 1024;
/// How much a client may send over HTTP/2 before it is read: as much as over HTTP/1.
const HTTP2_UNREAD_MAX_BYTES: u32 = 64 * 1024;

/// Serves one connection until it is done, has been silent for `patience`, or we stop.
pub(crate) async fn converse(stream: TcpStream, router: Router, patience: Duration, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let peer = Peer::of(&stream);
    let stream = Arc::new(stream);
    let activity = Arc::new(Activity::new());
    let line = Line {
        stream: Arc::clone(&stream),
        activity: Arc::clone(&activity),
        heads: Heads::default(),
        is_refused: false,
    };
    let service = Watched { router, peer, activity: Arc::clone(&activity) };
    let timed_out = speak(line, service, patience, &activity, &shutdown).await;
    // hyper has let go of it.
    let Some(mut stream) = Arc::into_inner(stream) else { return };
    let last = if activity.is_refused() {
        Some(malformed())
    } else {
        (timed_out && activity.waits_for_a_head()).then(too_slow)
    };
    if let Some(answer) = last {
        let _ = tokio::time::timeout(LINGER_MAX, stream.write_all(&answer)).await;
    }
    linger(stream).await;
}

/// Whether the client was too slow.
async fn speak(
    line: Line,
    service: Watched,
    patience: Duration,
    activity: &Activity,
    shutdown: &CancellationToken,
) -> bool {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Its own limit for headers would close idle connections, too.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        // A client that has said all and closed its side still hears the answer.
        .half_close(true)
        .max_buf_size(HEAD_MAX_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(patience))
        .max_header_list_size(HTTP2_HEAD_MAX_BYTES)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_UNREAD_MAX_BYTES)
        .initial_connection_window_size(HTTP2_UNREAD_MAX_BYTES);
    let connection = builder.serve_connection(TokioIo::new(line), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = activity.silence(patience) => return true,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                result = connection.as_mut() => result,
                () = activity.silence(patience) => return false,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "connection ended");
    }
    false
}

/// What is said to a client whose headers do not come.
fn too_slow() -> Vec<u8> {
    let error = ApiError::new(http::StatusCode::REQUEST_TIMEOUT, "request_timeout");
    last_answer(&error.detail("the headers did not arrive in time"))
}

/// What is said to a client whose request has more than one reading.
fn malformed() -> Vec<u8> {
    let error = ApiError::new(http::StatusCode::BAD_REQUEST, "malformed_request");
    last_answer(&error.detail(
        "a request has Content-Length or Transfer-Encoding, not both, and no control characters in its line or headers",
    ))
}

/// An answer that hyper does not give, after which the connection is closed.
fn last_answer(error: &ApiError) -> Vec<u8> {
    let body = error.body();
    let head = format!(
        "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        error.status,
        body.len()
    );
    [head.into_bytes(), body].concat()
}

/// Says goodbye and hears the client out for a moment.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let hear_out = async {
        let mut scrap = vec![0; 16 * 1024];
        let mut heard = 0;
        while heard < LINGER_MAX_BYTES {
            match stream.read(&mut scrap).await {
                Ok(0) | Err(_) => return,
                Ok(count) => heard += count,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER_MAX, hear_out).await;
}

/// What a connection is doing.
#[derive(Debug)]
struct Activity(Mutex<Doing>);

#[derive(Debug)]
struct Doing {
    in_hand: usize,
    /// Since when no request is in hand and nothing is written.
    quiet_since: Instant,
    /// When the head of a request began to come that is not whole yet.
    head_since: Option<Instant>,
    /// In which protocol the client speaks, once it does.
    protocol: Option<Protocol>,
    /// Whether it has ever asked anything.
    asked: bool,
    /// Whether its last request was refused before hyper saw it.
    refused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

impl Activity {
    fn new() -> Self {
        Self(Mutex::new(Doing {
            in_hand: 0,
            quiet_since: Instant::now(),
            head_since: None,
            protocol: None,
            asked: false,
            refused: false,
        }))
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> InHand {
        let mut doing = self.doing();
        doing.in_hand += 1;
        doing.asked = true;
        doing.head_since = None;
        drop(doing);
        InHand(Arc::clone(self))
    }

    fn heard(&self, bytes: &[u8]) {
        let mut doing = self.doing();
        if bytes.is_empty() {
            return;
        }
        // HTTP/2 begins with a preface that is no request; then frames come at any time.
        let protocol = *doing.protocol.get_or_insert(match bytes {
            [b'P'] | [b'P', b'R'] | [b'P', b'R', b'I', ..] => Protocol::Http2,
            _ => Protocol::Http1,
        });
        if doing.in_hand == 0 && protocol == Protocol::Http1 {
            doing.head_since.get_or_insert_with(Instant::now);
        }
    }

    fn said(&self) {
        self.doing().quiet_since = Instant::now();
    }

    fn refuse(&self) {
        self.doing().refused = true;
    }

    fn is_refused(&self) -> bool {
        self.doing().refused
    }

    /// Whether the head of a request began to come.
    fn waits_for_a_head(&self) -> bool {
        self.doing().head_since.is_some()
    }

    /// How long the client may still be silent; `None` while a request is in hand.
    fn patience_left(&self, patience: Duration) -> Option<Duration> {
        let doing = self.doing();
        let allowed = match (doing.in_hand, doing.head_since) {
            (0, Some(begun)) => begun + patience,
            (0, None) if doing.asked => doing.quiet_since + KEEP_ALIVE_MAX.max(patience),
            (0, None) => doing.quiet_since + patience,
            _ => return None,
        };
        Some(allowed.saturating_duration_since(Instant::now()))
    }

    /// Ends when the client has been silent for too long.
    async fn silence(&self, patience: Duration) {
        loop {
            match self.patience_left(patience) {
                Some(Duration::ZERO) => return,
                // A head may begin at any time: never look away for longer than it may take.
                Some(left) => tokio::time::sleep(left.min(patience)).await,
                None => tokio::time::sleep(patience).await,
            }
        }
    }
}

/// A request in hand, until it is dropped.
struct InHand(Arc<Activity>);

impl Drop for InHand {
    fn drop(&mut self) {
        let mut doing = self.0.doing();
        doing.in_hand -= 1;
        doing.quiet_since = Instant::now();
    }
}

/// The routes, for one connection.
#[derive(Clone)]
struct Watched {
    router: Router,
    peer: Peer,
    activity: Arc<Activity>,
}

impl<B> Service<http::Request<B>> for Watched
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::<Request>::poll_ready(&mut self.router, context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let in_hand = self.activity.begin();
        request.extensions_mut().insert(self.peer);
        let answer = self.router.call(request.map(axum::body::Body::new));
        Box::pin(async move {
            let _in_hand = in_hand;
            answer.await
        })
    }
}

/// The stream, shared: hyper speaks over it, and what is left to say when hyper has ended is said here.
struct Line {
    stream: Arc<TcpStream>,
    activity: Arc<Activity>,
    heads: Heads,
    /// A head was refused: hyper hears no more, as if the client had said all.
    is_refused: bool,
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_refused {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let before = buffer.filled().len();
            match self.stream.try_read_buf(buffer) {
                Ok(_) => {
                    if let Err(begun) = self.heads.follow(&buffer.filled()[before..]) {
                        buffer.set_filled(before + begun);
                        self.is_refused = true;
                        self.activity.refuse();
                    }
                    self.activity.heard(&buffer.filled()[before..]);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => {
                    self.activity.said();
                    return Poll::Ready(written);
                }
            }
        }
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
                    self.activity.said();
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

    /// Said by [`linger`], when hyper has let go.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
