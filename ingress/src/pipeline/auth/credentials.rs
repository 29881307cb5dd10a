//! Which credentials a request brings: the six headers of signed mode, or a bearer key.

use http::{HeaderMap, header};

use crate::pipeline::error::ApiError;

const PRODUCT: &str = "x-service-product";
const ENVIRONMENT: &str = "x-service-environment";
const API_KEY: &str = "x-service-api-key";
const TIMESTAMP: &str = "x-service-timestamp";
const NONCE: &str = "x-service-nonce";
const SIGNATURE: &str = "x-service-signature";
const SIGNED: [&str; 6] = [PRODUCT, ENVIRONMENT, API_KEY, TIMESTAMP, NONCE, SIGNATURE];

/// The credentials of one request, as received. `Debug` is left out: it would print the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub key: String,
    /// The other five `X-Service-…` headers of signed mode; none beside `Authorization: Bearer`.
    pub signed: Option<Signed>,
}

/// The headers of signed mode beside the key, as received.
#[derive(Clone, PartialEq, Eq)]
pub struct Signed {
    pub product: String,
    pub environment: String,
    pub timestamp: String,
    /// Single use.
    pub nonce: String,
    /// `sha256=<hex>`
    pub signature: String,
}

impl Credentials {
    /// Reads them.
    ///
    /// # Errors
    /// 401 `missing_credentials` when there are none or not all of them; 400 `ambiguous_credentials` for both modes at once
    /// or a header that is there twice.
    pub fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let twice = |name: &str| headers.get_all(name).iter().nth(1).is_some();
        let signed = SIGNED.iter().any(|name| headers.contains_key(*name));
        let bearer = headers.contains_key(header::AUTHORIZATION);
        if (signed && bearer) || SIGNED.iter().any(|name| twice(name)) || twice(header::AUTHORIZATION.as_str()) {
            return Err(ApiError::new(http::StatusCode::BAD_REQUEST, "ambiguous_credentials")
                .detail("send either one Authorization header or the X-Service headers, each once"));
        }
        match (bearer, signed) {
            (true, _) => Self::read_bearer(headers),
            (false, true) => Self::read_signed(headers),
            (false, false) => Err(missing(&format!(
                "send `Authorization: Bearer <API key>`, or sign the request and send {}",
                SIGNED.join(", ")
            ))),
        }
    }

    fn read_bearer(headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let key =
            text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
        match key {
            Some(key) if !key.is_empty() => Ok(Self { key: key.to_owned(), signed: None }),
            _ => Err(missing("Authorization must be `Bearer <API key>`")),
        }
    }

    fn read_signed(headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = |name: &str| -> Result<String, ApiError> {
            let value = headers.get(name).ok_or_else(|| missing(&format!("{name} is missing")))?;
            Ok(value.to_str().map_err(|_| missing(&format!("{name} is not ASCII")))?.to_owned())
        };
        let (product, environment, key) = (text(PRODUCT)?, text(ENVIRONMENT)?, text(API_KEY)?);
        let signed = Signed {
            product,
            environment,
            timestamp: text(TIMESTAMP)?,
            nonce: text(NONCE)?,
            signature: text(SIGNATURE)?,
        };
        Ok(Self { key, signed: Some(signed) })
    }
}

fn missing(detail: &str) -> ApiError {
    ApiError::unauthorized("missing_credentials").detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use rstest::rstest;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
        }
        map
    }

    const ALL: [(&str, &str); 6] = [
        (PRODUCT, "crm"),
        (ENVIRONMENT, "production"),
        (API_KEY, "k"),
        (TIMESTAMP, "t"),
        (NONCE, "n"),
        (SIGNATURE, "s"),
    ];

    #[rstest]
    #[case(&[], "missing_credentials")]
    #[case(&[("authorization", "Basic abc")], "missing_credentials")]
    #[case(&[("authorization", "Bearer ")], "missing_credentials")]
    #[case(&ALL[..5], "missing_credentials")]
    #[case(&[("authorization", "Bearer k"), ("authorization", "Bearer k")], "ambiguous_credentials")]
    #[case(&[("authorization", "Bearer k"), (PRODUCT, "crm")], "ambiguous_credentials")]
    #[case(&[(NONCE, "a"), (NONCE, "b")], "ambiguous_credentials")]
    fn incomplete_or_doubled_credentials_are_refused(#[case] pairs: &[(&str, &str)], #[case] code: &str) {
        let error = Credentials::read(&headers(pairs)).err().unwrap();
        assert_eq!(error.code, code);
        assert_eq!(error.status.as_u16(), if code == "ambiguous_credentials" { 400 } else { 401 });
    }

    #[test]
    fn of_missing_headers_the_first_is_named() {
        let without: Vec<_> = ALL.into_iter().filter(|(name, _)| ![API_KEY, TIMESTAMP].contains(name)).collect();
        let error = Credentials::read(&headers(&without)).err().unwrap();
        assert_eq!(error.detail, Some(format!("{API_KEY} is missing")));
    }

    #[test]
    fn either_mode_is_read() {
        assert_eq!(Credentials::read(&headers(&[("authorization", "bearer k")])).ok().unwrap().key, "k");
        let signed = Credentials::read(&headers(&ALL)).ok().unwrap().signed;
        assert!(signed.is_some_and(|signed| signed.product == "crm" && signed.nonce == "n"));
    }
}
