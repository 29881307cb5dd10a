//! The octet stream under a connection: TCP without Nagle's delay, in clear or through rustls.

use std::io::{self, IoSlice};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A connected stream.
pub(super) enum SmtpStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl SmtpStream {
    /// Connects; small writes leave at once, as each of ours is a complete group of commands or a complete body.
    pub(super) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((host, port)).await?;
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
