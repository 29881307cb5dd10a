//! The query of a request: its tenant, its page, and the parameters of the route.

use serde::de::DeserializeOwned;

use super::{error::ApiError, json, tenant::TenantClaim};

pub(super) fn decode_query<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    json::decode_from(serde_urlencoded::Deserializer::new(url::form_urlencoded::parse(query.as_bytes())))
}

/// Separates the tenant from the other query parameters.
pub(super) fn split_query(query: Option<&str>) -> Result<(TenantClaim, String), ApiError> {
    let (mut product, mut engine) = (None, None);
    let mut rest = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if value.contains('\0') {
            return Err(ApiError::invalid(name, "invalid", "contains a NUL character"));
        }
        let slot = match name.as_ref() {
            "product_tenant_id" => &mut product,
            "engine_tenant_id" => &mut engine,
            _ => {
                rest.append_pair(&name, &value);
                continue;
            }
        };
        if slot.replace(value.into_owned()).is_some() {
            return Err(ApiError::invalid(name, "duplicate", "is given twice"));
        }
    }
    Ok((TenantClaim::new(product, engine.as_deref())?, rest.finish()))
}

/// Separates the parameters of a page from the other query parameters.
pub(super) fn split_page(query: &str) -> (String, String) {
    let mut parts = [(); 2].map(|()| url::form_urlencoded::Serializer::new(String::new()));
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let of_page = matches!(name.as_ref(), "limit" | "cursor");
        parts[usize::from(!of_page)].append_pair(&name, &value);
    }
    let [mut page, mut rest] = parts;
    (page.finish(), rest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Query {
        limit: Option<i64>,
        email: Option<String>,
    }

    #[test]
    fn the_tenant_is_split_from_the_other_parameters() {
        let (claim, rest) = split_query(Some("limit=5&product_tenant_id=a%20b&email=x%2By%40example.com")).unwrap();
        assert_eq!(claim.product_tenant_id, "a b");
        let query = decode_query::<Query>(&rest).unwrap();
        assert_eq!((query.limit, query.email.as_deref()), (Some(5), Some("x+y@example.com")));
    }

    #[rstest]
    #[case("", "product_tenant_id", "required")]
    #[case("product_tenant_id=", "product_tenant_id", "invalid")]
    #[case("product_tenant_id=a&product_tenant_id=a", "product_tenant_id", "duplicate")]
    #[case("product_tenant_id=a&engine_tenant_id=x", "engine_tenant_id", "invalid")]
    #[case("product_tenant_id=a&email=%00", "email", "invalid")]
    #[case("product_tenant_id=a&limit=many", "limit", "invalid")]
    #[case("product_tenant_id=a&colour=red", "colour", "unknown_field")]
    fn a_bad_query_is_refused_with_its_parameter(#[case] query: &str, #[case] path: &str, #[case] code: &str) {
        let error = split_query(Some(query)).and_then(|(_, rest)| decode_query::<Query>(&rest).map(drop)).unwrap_err();
        assert_eq!((error.fields[0].path.as_str(), error.fields[0].code.as_ref()), (path, code), "{error:?}");
    }

    #[derive(Debug, serde::Deserialize)]
    #[allow(dead_code)]
    struct Typed {
        limit: Option<i64>,
        refused: Option<bool>,
        key_id: Option<uuid::Uuid>,
    }

    #[rstest]
    #[case("limit=abc", "must be a whole number")]
    #[case("limit=", "must be a whole number")]
    #[case("limit=99999999999999999999", "must be a whole number in range")]
    #[case("refused=maybe", "must be true or false")]
    #[case("key_id=x", "must be a UUID")]
    fn a_fault_of_a_query_is_not_a_parsers_own_text(#[case] query: &str, #[case] detail: &str) {
        assert_eq!(decode_query::<Typed>(query).unwrap_err().fields[0].detail, detail);
    }
}
