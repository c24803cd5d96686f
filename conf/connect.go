// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout bounds one attempt to connect if neither the connection
// string nor PGCONNECT_TIMEOUT does.
const connectTimeout = 10 * time.Second

// PoolConfig is the connection that dsnFlag names, else DSN of c, else libpq's
// environment: PG* variables, pg_service.conf and the password file, all of
// which also complete a partial connection string. It does not connect. Its
// errors never show a password.
func PoolConfig(dsnFlag string, c Conf) (*pgxpool.Config, error) {
	dsn, from := source(dsnFlag, c)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("connection settings of %s: %s", from, parseReason(err))
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "gpubudget"
	}
	// Without a limit a host that drops packets would hold the prompt for
	// minutes.
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	return config, nil
}

// Connect opens a pool on the database that PoolConfig finds and makes sure
// that it answers. Its error is a *ConnectError, or what PoolConfig returned.
func Connect(ctx context.Context, dsnFlag string, c Conf) (*pgxpool.Pool, error) {
	config, err := PoolConfig(dsnFlag, c)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open connection pool: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		_, from := source(dsnFlag, c)
		return nil, NewConnectError(config.ConnConfig, from, err)
	}
	return pool, nil
}

// source is the connection string to use and where it comes from.
func source(dsnFlag string, c Conf) (dsn, from string) {
	switch {
	case dsnFlag != "":
		return dsnFlag, "--dsn"
	case c.DSN != "":
		return c.DSN, "DSN in " + c.Path
	}
	if !configured() {
		return "", fromDefaults
	}
	return "", "PG* environment variables"
}

// fromDefaults is where a connection comes from that nobody configured.
const fromDefaults = "libpq's defaults"

// configured tells whether libpq's environment leads to a database.
func configured() bool {
	for _, name := range []string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

// parseReason is why a connection string was refused, without any of its text
// where that could hold a password.
func parseReason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	if strings.HasPrefix(text, "failed to parse as") {
		return "neither key=value pairs nor a URL postgres://USER@HOST:PORT/DATABASE" +
			" (in a URL, write special characters of a password as %XX, or leave it to the password file)"
	}
	return oneLine(text)
}

// ConnectError is a failed attempt to connect: where to, why, and what to do.
// Its text is one line without a password.
type ConnectError struct {
	// Target names host, port, database and user.
	Target string
	// From is where these were taken from.
	From string
	// Reason is what failed and Remedy what may help; Remedy can be empty.
	Reason, Remedy string

	err error
}

// NewConnectError explains err, met when connecting with config, which was
// taken from the source named from.
func NewConnectError(config *pgx.ConnConfig, from string, err error) *ConnectError {
	reason, remedy := explain(config, err)
	if from == fromDefaults {
		remedy = "nothing says where the database is: name it with --dsn, DSN= in " + DefaultPath + " or PG* environment variables"
	}
	return &ConnectError{Target: target(config), From: from, Reason: reason, Remedy: remedy, err: err}
}

func (e *ConnectError) Error() string {
	text := fmt.Sprintf("cannot connect to PostgreSQL at %s (from %s): %s", e.Target, e.From, e.Reason)
	if e.Remedy != "" {
		text += ": " + e.Remedy
	}
	return text
}

// Unwrap is the error of the driver.
func (e *ConnectError) Unwrap() error { return e.err }

// target names where config leads: every host once, in order.
func target(config *pgx.ConnConfig) string {
	hosts := []string{address(config.Host, config.Port)}
	for _, f := range config.Fallbacks {
		if a := address(f.Host, f.Port); a != hosts[len(hosts)-1] {
			hosts = append(hosts, a)
		}
	}
	return fmt.Sprintf("%s, database %q, user %q", strings.Join(hosts, " or "), database(config), config.User)
}

// address is HOST:PORT, or the socket's file if host is a folder.
func address(host string, port uint16) string {
	if network, file := pgconn.NetworkAddress(host, port); network == "unix" {
		return file
	}
	return fmt.Sprintf("%s:%d", host, port)
}

// database is the database's name; the server takes the user's name if none
// is given.
func database(config *pgx.ConnConfig) string {
	if config.Database != "" {
		return config.Database
	}
	return config.User
}

// explain says what failed and what may help.
func explain(config *pgx.ConnConfig, err error) (reason, remedy string) {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return oneLine(refused.Message), serverRemedy(config, refused.Code)
	}
	return networkReason(config, err)
}

// serverRemedy is what helps against an answer of the server, by SQLSTATE.
func serverRemedy(config *pgx.ConnConfig, code string) string {
	switch code {
	case "28P01": // invalid_password
		return "put the password into ~/.pgpass (or PGPASSFILE), or correct it"
	case "28000": // invalid_authorization_specification
		return fmt.Sprintf("create the role %q or name another with user=, and see that pg_hba.conf lets it in", config.User)
	case "3D000": // invalid_catalog_name
		return fmt.Sprintf("create it with: createdb %s, or name another with dbname= or PGDATABASE", database(config))
	case "42501": // insufficient_privilege
		return fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s", database(config), config.User)
	case "53300": // too_many_connections
		return "raise max_connections or close other sessions"
	case "57P03": // cannot_connect_now
		return "wait until the server has started"
	}
	return ""
}

// networkReason explains a failure to reach the server at all.
func networkReason(config *pgx.ConnConfig, err error) (reason, remedy string) {
	var unknownHost *net.DNSError
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknownHost):
		return fmt.Sprintf("host %q is not known", unknownHost.Name), "check host= or PGHOST"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", "check that the server runs and listens there (host=, port=, PGHOST, PGPORT)"
	case errors.Is(err, fs.ErrNotExist):
		return "no such socket", "check that the server runs, or name its host (host=, port=, PGHOST, PGPORT)"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied on the socket", "ask for access to its folder or name a host (host=, PGHOST)"
	case errors.As(err, &certificate), errors.As(err, &authority):
		return "the server's certificate is not trusted", "set sslrootcert= or PGSSLROOTCERT"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "the server does not speak TLS", "set sslmode=prefer, or turn ssl on in the server"
	case pgconn.Timeout(err), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time", "check host and port and any firewall between, or raise connect_timeout"
	}
	return oneLine(withoutPassword(err.Error(), config.Password)), ""
}

// withoutPassword hides password in text, should the driver ever show it.
func withoutPassword(text, password string) string {
	if password == "" {
		return text
	}
	return strings.ReplaceAll(text, password, "******")
}

// oneLine is text with every run of white space made one space.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
