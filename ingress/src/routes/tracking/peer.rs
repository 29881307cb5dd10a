//! Whose connection a request came in on.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
};

use axum::extract::FromRequestParts;
use http::request::Parts;
use tokio::net::TcpStream;

/// The other end of the connection: the client, or the proxy in front of us. Forwarding headers are not read: anybody can send them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer(Option<SocketAddr>);

impl Peer {
    /// The other end of a connection.
    #[must_use]
    pub fn of(stream: &TcpStream) -> Self {
        Self(stream.peer_addr().ok())
    }

    /// Its address, where it is known.
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        self.0.map(|address| address.ip())
    }
}

impl<S: Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().copied().unwrap_or_default())
    }
}
