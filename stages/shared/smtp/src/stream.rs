//! The octet stream under a connection: TCP without Nagle's delay, in clear or through rustls.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    time::Duration,
};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

pub(super) enum SmtpStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl SmtpStream {
    /// Connects to the first of the host's addresses that answers, each within its share of `limit`; small writes leave at once, as each of
    /// ours is a complete group of commands or a complete body.
    pub(super) async fn connect(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
        let stream = connect_to_any(&addresses, limit).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The TLS handshake over a connected socket, with the certificate checked for `host`.
    pub(super) async fn handshake(stream: TcpStream, tls: &TlsConnector, host: &str) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self::Tls(Box::new(tls.connect(name, stream).await?)))
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Writes all of `parts`, in one system call where the socket takes as much. `written` counts octets also if it fails.
    pub(super) async fn write_all(&mut self, mut parts: &mut [IoSlice<'_>], written: &mut usize) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let count = match self {
                Self::Plain(stream) => stream.write_vectored(parts).await?,
                Self::Tls(stream) => stream.write_vectored(parts).await?,
            };
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            *written += count;
            IoSlice::advance_slices(&mut parts, count);
        }
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush().await,
        }
    }

    /// Reads some octets onto the end of `input`; 0 means the server closed.
    pub(super) async fn read_into(&mut self, input: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_buf(input).await,
            Self::Tls(stream) => stream.read_buf(input).await,
        }
    }
}

/// Connects to the first address that answers. One that does not leaves the others their time.
async fn connect_to_any(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let each = limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let connected = timeout(each, TcpStream::connect(address)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_the_others_their_time() {
        let full = TcpSocket::new_v4().unwrap();
        full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = full.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        // Nobody accepts: what is beyond the backlog gets no answer.
        let mut waiting = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(500), TcpStream::connect(silent)).await {
            waiting.push(connected.unwrap());
        }
        let serves = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [silent, serves.local_addr().unwrap()];
        let all = connect_to_any(&addresses, Duration::from_secs(4));
        let stream = timeout(Duration::from_secs(20), all).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let none = connect_to_any(&[silent], Duration::from_millis(500)).await;
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
