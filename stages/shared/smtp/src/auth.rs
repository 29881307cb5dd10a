//! AUTH (RFC 4954): which mechanism, and what is said.

use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::ExposeSecret;

use super::{AuthMechanism, SmtpCredentials};

/// The mechanisms that we speak, of an `AUTH` line in an EHLO reply.
pub(super) fn offered(mechanisms: &str) -> impl Iterator<Item = AuthMechanism> {
    mechanisms.split_ascii_whitespace().filter_map(|name| AuthMechanism::parse(&name.to_ascii_uppercase()))
}

/// The mechanism to use: the one the settings name if it is offered, else PLAIN, else LOGIN.
pub(super) fn choose(offered: &[AuthMechanism], wanted: Option<AuthMechanism>) -> Option<AuthMechanism> {
    match wanted {
        Some(mechanism) => Some(mechanism).filter(|mechanism| offered.contains(mechanism)),
        None => [AuthMechanism::Plain, AuthMechanism::Login].into_iter().find(|mechanism| offered.contains(mechanism)),
    }
}

/// The lines the client sends, the first at once and each further one after a 334.
pub(super) fn lines(mechanism: AuthMechanism, credentials: &SmtpCredentials) -> Vec<String> {
    let (user, password) = (&credentials.user, credentials.password.expose_secret());
    match mechanism {
        AuthMechanism::Plain => vec![format!("AUTH PLAIN {}\r\n", STANDARD.encode(format!("\0{user}\0{password}")))],
        AuthMechanism::Login => vec![
            "AUTH LOGIN\r\n".to_owned(),
            format!("{}\r\n", STANDARD.encode(user)),
            format!("{}\r\n", STANDARD.encode(password)),
        ],
        // A refused token is answered with 334 and an error; the empty line asks for the final 5xx.
        AuthMechanism::XOAuth2 => vec![
            format!("AUTH XOAUTH2 {}\r\n", STANDARD.encode(format!("user={user}\x01auth=Bearer {password}\x01\x01"))),
            "\r\n".to_owned(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::first_choice("LOGIN PLAIN", None, Some(AuthMechanism::Plain))]
    #[case::only_login("LOGIN CRAM-MD5", None, Some(AuthMechanism::Login))]
    #[case::named("plain login xoauth2", Some(AuthMechanism::XOAuth2), Some(AuthMechanism::XOAuth2))]
    #[case::named_and_not_offered("PLAIN", Some(AuthMechanism::Login), None)]
    #[case::nothing_we_speak("GSSAPI NTLM", None, None)]
    #[case::a_token_is_not_a_password("XOAUTH2", None, None)]
    fn the_mechanism_is_one_that_is_offered(
        #[case] line: &str,
        #[case] wanted: Option<AuthMechanism>,
        #[case] chosen: Option<AuthMechanism>,
    ) {
        let mechanisms: Vec<AuthMechanism> = offered(line).collect();
        assert_eq!(choose(&mechanisms, wanted), chosen);
    }

    #[test]
    fn plain_is_written_as_rfc_4616_says() {
        let credentials =
            SmtpCredentials { user: "tim".into(), password: "tanstaaftanstaaf".to_owned().into(), mechanism: None };
        assert_eq!(lines(AuthMechanism::Plain, &credentials), ["AUTH PLAIN AHRpbQB0YW5zdGFhZnRhbnN0YWFm\r\n"]);
    }
}
