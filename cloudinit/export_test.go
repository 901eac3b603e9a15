package cloudinit

// What the tests look at from outside.
var (
	Quote            = quote
	Block            = block
	Sha512crypt      = sha512crypt
	SquidSetupScript = squidSetupScript
	UsersPath        = usersPath
	ConfPath         = confPath
	HelperPath       = helperPath
)
