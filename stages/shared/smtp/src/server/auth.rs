//! `AUTH PLAIN` and `AUTH LOGIN` (RFC 4954, RFC 4616).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// An exchange that waits for the client's next line.
#[derive(Debug)]
pub(super) enum AuthExchange {
    Plain,
    LoginUser,
    LoginPassword { user: Vec<u8> },
}

/// What a line of an exchange leads to.
#[derive(Debug)]
pub(super) enum AuthProgress {
    Ask(AuthExchange),
    Presented { user: Vec<u8>, password: Vec<u8> },
    Unreadable,
}

impl AuthExchange {
    /// The exchange `AUTH <mechanism> [initial]` begins; `None` for mechanisms we do not have.
    pub(super) fn begin(mechanism: &str, initial: Option<&str>) -> Option<AuthProgress> {
        let exchange = if mechanism.eq_ignore_ascii_case("PLAIN") {
            Self::Plain
        } else if mechanism.eq_ignore_ascii_case("LOGIN") {
            Self::LoginUser
        } else {
            return None;
        };
        Some(match initial {
            Some(initial) => exchange.line(initial),
            None => AuthProgress::Ask(exchange),
        })
    }

    /// The `334` line that asks for what comes next.
    pub(super) fn prompt(&self) -> &'static str {
        match self {
            Self::Plain => "334 ",
            Self::LoginUser => "334 VXNlcm5hbWU6",
            Self::LoginPassword { .. } => "334 UGFzc3dvcmQ6",
        }
    }

    pub(super) fn line(self, line: &str) -> AuthProgress {
        let Ok(decoded) = STANDARD.decode(line.trim()) else {
            return AuthProgress::Unreadable;
        };
        match self {
            Self::Plain => {
                // authorisation identity NUL user NUL password
                let mut parts = decoded.split(|byte| *byte == 0);
                match (parts.next(), parts.next(), parts.next(), parts.next()) {
                    (Some(_), Some(user), Some(password), None) => {
                        AuthProgress::Presented { user: user.to_vec(), password: password.to_vec() }
                    }
                    _ => AuthProgress::Unreadable,
                }
            }
            Self::LoginUser => AuthProgress::Ask(Self::LoginPassword { user: decoded }),
            Self::LoginPassword { user } => AuthProgress::Presented { user, password: decoded },
        }
    }
}
